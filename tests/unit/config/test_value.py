"""The text of options and variables becomes values of the types of their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from parallax_core.base.errors import BrokenPlugin, UsageError
from parallax_core.config.schema import Key
from parallax_core.config.source import SettingOrigin, WrittenSetting
from parallax_core.config.value import read_value

FLAG, FILE = SettingOrigin("flag", "--thing"), SettingOrigin("file", "/etc/parallax/parallax.toml")


def read(kind: Any, value: object, origin: SettingOrigin = FLAG, name: str = "thing", default: object = None) -> object:
    return read_value("part", Key(name=name, type=kind, default=default, meta=Meta()), WrittenSetting(value, origin))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (int, "3", 3),
        (int | None, "3", 3),
        (bool, "true", True),
        (str, "a,b", "a,b"),
        (tuple[str, ...], " a, ,b,", ("a", "b")),
        (list[int], "1,2", [1, 2]),
        (list[str], "", []),
        (dict[str, int], "a=1, b = 2", {"a": 1, "b": 2}),
        (dict[str, str], "a=b=c,d=", {"a": "b=c", "d": ""}),
        (dict[str, dict[str, str]], "x.a=1,x.b=2,y.a=3", {"x": {"a": "1", "b": "2"}, "y": {"a": "3"}}),
    ],
)
def test_text_of_an_option_is_read_by_the_type_of_its_key(kind: Any, text: str, expected: object) -> None:
    assert read(kind, text) == expected


@pytest.mark.parametrize("text", ["a", "a=1,b", "a=1,a.b=2", "a.b=2,a=1", "a.b.c=1,a.b=2"])
def test_table_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--thing is"):
        read(dict[str, Any], text)


def test_value_of_a_file_is_not_read_from_text() -> None:
    with pytest.raises(UsageError, match="is '3': expected an integer"):
        read(int, "3", FILE)
    assert read(list[str], ["a,b"], FILE) == ["a,b"]


def test_path_of_a_file_is_relative_to_its_folder_and_one_of_an_option_to_this_one() -> None:
    assert read(Path, "models", FILE) == Path("/etc/parallax/models")
    assert read(Path, "/models", FILE) == Path("/models")
    assert read(Path, "models") == Path("models")
    assert read(Path, "~/models", FILE) == Path.home() / "models"


def test_error_names_the_place_the_value_and_the_default() -> None:
    with pytest.raises(UsageError, match=r"--thing is \['x'\]|--thing is 'x'") as caught:
        read(list[int], "x", default=[1])
    assert "expected a list" in caught.value.message
    assert "(at [0])" in caught.value.message
    assert caught.value.hint == "correct it, or remove it for the default, [1]"


def test_secret_is_not_shown() -> None:
    kind = Annotated[str, Meta(max_length=3)]
    with pytest.raises(UsageError) as caught:
        read(kind, "hunter2", name="api_key")
    assert "hunter2" not in caught.value.message
    assert "***" in caught.value.message


def test_type_that_a_configuration_cannot_hold_is_a_fault_of_its_plugin() -> None:
    with pytest.raises(BrokenPlugin, match=r"\[part\] thing has the type range"):
        read(range, "3")
