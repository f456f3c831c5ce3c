from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from parallax_core.base.errors import UsageError
from parallax_core.config.config import Config
from parallax_core.config.schema import describe_type, list_keys
from parallax_core.config.serve import ServeSettings
from parallax_core.config.source import SettingOrigin, find_file, name_variable, read_file


@dataclass(frozen=True, kw_only=True)
class Example:
    count: Annotated[int, Meta(ge=1, description="How many.")] = 1
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    name: str = "x"
    note: str | None = None
    most: Annotated[int | None, Meta(ge=1, le=9)] = None
    is_on: bool = False
    color: Literal["red", "blue"] = "red"
    file: Path | None = None
    names: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    table: Mapping[Literal["a", "b"], Mapping[str, str]] = field(default_factory=dict)
    api_key: str = ""
    pin: Annotated[int, Meta(extra={"secret": True})] = 0

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("13 brings bad luck")


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def load(text: str = "", **environ: str) -> Config:
    Path("parallax.toml").write_text(text)
    return Config.load(environ=environ)


def test_flag_comes_before_environment_before_file_before_default() -> None:
    config = load("[x]\ncount = 2\nname = 'file'\nnote = 'file'", PARALLAX_X__NAME="env", PARALLAX_X__COUNT="3")
    read = config.read("x", Example, {"count": 4})
    assert (read.count, read.name, read.note, read.color) == (4, "env", "file", "red")


def test_origin_of_each_value_is_known() -> None:
    settings = load("[x]\nnote = 'a'", PARALLAX_X__NAME="env").explain("x", Example)
    origins = {setting.key.name: setting.origin for setting in settings}
    assert origins["note"] == SettingOrigin("file", str(Path("parallax.toml").absolute()))
    assert origins["name"] == SettingOrigin("environment", "PARALLAX_X__NAME")
    assert origins["count"] == SettingOrigin("default")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "7", 7),
        ("share", "1", 1.0),
        ("name", "007", "007"),
        ("note", "a, b", "a, b"),
        ("most", "4", 4),
        ("is_on", "true", True),
        ("is_on", "0", False),
        ("color", "blue", "blue"),
        ("file", "~/f", Path("~/f").expanduser()),
        ("file", "f", Path("f")),
        ("names", " a, b ,", ("a", "b")),
        ("weights", "a=1, b=0.5", {"a": 1.0, "b": 0.5}),
        ("table", "a.x=1,a.y=2,b.x=3", {"a": {"x": "1", "y": "2"}, "b": {"x": "3"}}),
    ],
)
def test_environment_is_text_of_the_type_of_the_key(key: str, text: str, value: object) -> None:
    config = load(**{name_variable("x", key): text})
    assert getattr(config.read("x", Example), key) == value


def test_variable_that_is_empty_counts_as_not_set() -> None:
    assert load("[x]\nname = 'file'", PARALLAX_X__NAME="").read("x", Example).name == "file"


def test_variables_with_one_underscore_are_no_settings() -> None:
    assert load(PARALLAX_PLUGINS_DISABLED="a", PARALLAX_HOME="h", PARALLAX__X="1").sections == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count = 'a'", "is 'a': expected an integer of at least 1"),
        ("count = 0", "is 0: expected an integer of at least 1"),
        ("count = true", "is True: expected an integer"),
        ("share = 2", "is 2: expected a number from 0 to 1"),
        ("most = 10", "is 10: expected an integer from 1 to 9"),
        ("most = 'a'", "is 'a': expected an integer from 1 to 9"),
        ("name = 1", "is 1: expected text"),
        ("is_on = 'true'", "is 'true': expected true or false"),
        ("color = 'green'", "is 'green': expected one of red, blue"),
        ("file = 1", "is 1: expected a path"),
        ("names = 'a'", "is 'a': expected a list, each item text"),
        ("names = ['a', 1]", "is ['a', 1]: expected a list, each item text (at [1])"),
        ("table.c.x = 'a'", "each name one of a, b, each value a table"),
        ("api_key = 5", "api_key in {file} is ***: expected text"),
    ],
)
def test_wrong_value_names_file_section_key_and_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(f"[x]\n{text}").read("x", Example)
    path = str(Path("parallax.toml").absolute())
    assert caught.value.message.startswith(f"[x] {text.partition(' ')[0].partition('.')[0]} in {path} is ")
    assert message.format(file=path) in caught.value.message
    assert caught.value.hint.startswith("correct it, or remove it")


@pytest.mark.parametrize("text", ["a", "a.x", "a=1,a.b=2"])
def test_wrong_text_in_the_environment_names_the_variable(text: str) -> None:
    with pytest.raises(UsageError, match="PARALLAX_X__TABLE is "):
        load(PARALLAX_X__TABLE=text).read("x", Example)


def test_check_of_the_section_itself_is_told() -> None:
    with pytest.raises(UsageError, match=r"\[x\]: 13 brings bad luck") as caught:
        load("[x]\ncount = 13", PARALLAX_X__NAME="a").read("x", Example, {"is_on": True})
    path = Path("parallax.toml").absolute()
    assert caught.value.hint == f"set by: [x] count in {path}, PARALLAX_X__NAME, --is-on"


def test_unknown_key_gets_a_near_one_or_all() -> None:
    with pytest.raises(UsageError, match="there is no such setting") as caught:
        load("[x]\nis-on = true").read("x", Example)
    assert caught.value.hint == "did you mean 'is_on'?"
    with pytest.raises(UsageError, match="PARALLAX_X__ZZZ: there is no such setting") as caught:
        load(PARALLAX_X__ZZZ="1").read("x", Example)
    assert "count, share" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load(PARALLAX_X__NAMED="1").read("x", Example)
    assert caught.value.hint == "did you mean PARALLAX_X__NAME?"


def test_file_may_begin_with_a_mark_of_its_encoding() -> None:
    Path("parallax.toml").write_bytes(b"\xef\xbb\xbf[x]\r\nname = 'marked'\r\n")
    assert Config.load(environ={}).read("x", Example).name == "marked"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"port = 1", "'port' in .* is outside a section"),
        (b"a = = 1", "is not valid TOML: .*line 1"),
        (b"[x]\n\xff", "is not UTF-8, at byte 4"),
    ],
)
def test_file_that_is_no_configuration_is_refused(content: bytes, message: str) -> None:
    Path("parallax.toml").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        Config.load(environ={})


def test_file_that_cannot_be_read_is_told_in_words_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_file(tmp_path)
    assert str(caught.value) == f"the configuration {tmp_path} cannot be read: Is a directory"


def test_file_is_the_one_given_or_named_or_here_or_at_home(tmp_path: Path) -> None:
    assert find_file(None, {}) is None
    home = tmp_path / "home" / "config" / "parallax.toml"
    home.parent.mkdir(parents=True)
    for path, given, environ in [
        (home, None, {}),
        (tmp_path / "parallax.toml", None, {}),
        (tmp_path / "named.toml", None, {"PARALLAX_CONFIG": str(tmp_path / "named.toml")}),
        (tmp_path / "given.toml", tmp_path / "given.toml", {"PARALLAX_CONFIG": str(tmp_path / "named.toml")}),
    ]:
        path.write_text("")
        assert find_file(given, environ) == path


@pytest.mark.parametrize(
    ("given", "environ", "by"),
    [(Path("none.toml"), {}, "--config"), (None, {"PARALLAX_CONFIG": "none.toml"}, "PARALLAX_CONFIG")],
)
def test_file_that_is_named_has_to_be_there(given: Path | None, environ: dict[str, str], by: str) -> None:
    with pytest.raises(UsageError, match=r"there is no configuration file none\.toml") as caught:
        find_file(given, environ)
    assert by in caught.value.hint


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    path = tmp_path / "far" / "own.toml"
    path.write_text("[x]\nfile = 'keys'")
    assert Config.load(path, {}).read("x", Example).file == tmp_path / "far" / "keys"


def test_tables_are_shown_as_tables() -> None:
    settings = load("[x]\nweights = {one = 1.5, two = 2}\ntable = {a = {b = 'c'}}").explain("x", Example)
    shown = {setting.key.name: setting.shown for setting in settings}
    assert (shown["weights"], shown["table"]) == ({"one": 1.5, "two": 2}, {"a": {"b": "c"}})


def test_secrets_are_not_shown() -> None:
    settings = load("[x]\napi_key = 'abc'\npin = 5\nname = 'open'").explain("x", Example)
    shown = {setting.key.name: setting.shown for setting in settings}
    assert (shown["api_key"], shown["pin"], shown["name"]) == ("***", "***", "open")
    unset = {setting.key.name: setting.shown for setting in load().explain("x", Example)}
    assert unset["api_key"] == ""


def test_keys_of_a_section_come_before_those_that_it_shares() -> None:
    names = list(list_keys(ServeSettings))
    assert names.index("backend") < names.index("spares") < names.index("model") < names.index("host")


def test_paths_to_keys_are_no_secrets() -> None:
    assert [name for name, key in list_keys(ServeSettings).items() if key.is_secret] == []


def test_every_setting_of_serve_is_described() -> None:
    assert [name for name, key in list_keys(ServeSettings).items() if not key.description] == []


def test_type_of_its_own_is_called_by_its_name() -> None:
    assert describe_type(range) == "range"
    assert describe_type(Annotated[int, Meta(le=3)]) == "an integer of at most 3"
