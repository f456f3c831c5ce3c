"""The options of serve are the settings of serve, whoever writes them."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from parallax_core.base.errors import UsageError
from parallax_core.base.log import writes_json
from parallax_core.cli.command import new_app
from parallax_core.cli.exposure import make_options
from parallax_core.cli.option import from_section, list_switches
from parallax_core.cli.serve import app
from parallax_core.config.config import Config
from parallax_core.config.schema import list_keys
from parallax_core.config.serve import ServeSettings
from parallax_core.config.source import name_variable

VALUES: dict[str, Any] = {
    "backend": "torch",
    "backend_option": ["weights=int8", "threads=2"],
    "transport": "zmq",
    "stages": 2,
    "layers": "0-1,1-2",
    "data_parallel": 2,
    "spares": 1,
    "device": ["gpu:0", "gpu:1"],
    "listen": "tcp://127.0.0.1:0",
    "find": ["code", "other"],
    "deployment": "slurm",
    "python": ["torch=/usr/bin/python"],
    "relay_rate": 2.5,
    "relay_quota": 3.5,
    "relay": True,
    "model": "org/name",
    "peer_timeout": 4.5,
    "min_peer_timeout": 1.5,
    "step_timeout": 7.5,
    "recovery_timeout": 90.5,
    "load_timeout": 60.5,
    "discovery": False,
    "offline": True,
    "stun_port": 9,
    "log_format": "text",
    "host": "::1",
    "port": 9,
    "dtype": "float16",
    "generation_config": "off",
    "parser": "none",
    "batching": "size",
    "scheduling": "fair-by-key",
    "preemption": "none",
    "routing": "round-robin",
    "api_key_file": "keys",
    "insecure": True,
    "allowed_host": ["llm.lan", "b"],
    "tls_cert": "cert",
    "tls_key": "key",
    "served_model_name": ["gpt-4o", "claude-sonnet-4-5"],
    "adapter": ["pirate=/adapters/pirate"],
    "cors_origin": ["https://a", "https://b"],
    "max_concurrent": 1,
    "max_per_minute": 2,
    "max_output_tokens": 3,
    "min_priority": -4,
    "max_unread": 5,
    "max_running": 512,
    "max_waiting": 7,
    "max_batch_tokens": 2048,
    "target_itl": 40.5,
    "memory_fraction": 0.8,
    "share_cache": True,
    "default_timeout": 8.5,
    "lenient": True,
    "response_store": "store",
    "response_store_size": 32.5,
    "response_ttl": 6.5,
    "untrained_tools": False,
    "keep_billing_line": True,
    "log_prompts": True,
    "max_body": 16.0,
    "tokenizer_processes": 3,
    "request_timeout": 3.5,
    "keep_alive": 5.5,
    "otlp_endpoint": "http://o",
    "drain": 4.5,
    "strict_plugins": True,
    "verbose": True,
}
"""For each setting, a value that is not its default, as a file has it."""


def run(*arguments: str) -> ServeSettings:
    """Return what a command with the options of serve gets."""
    seen: list[ServeSettings] = []
    command = typer.Typer()

    @command.command()
    @from_section("serve", ServeSettings)
    def serve(settings: ServeSettings, config: Config) -> None:
        seen.append(settings)

    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return seen[0]


def as_flags(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    match value:
        case True:
            return [option]
        case False:
            return [option.replace("--", "--no-", 1)]
        case list():
            return [word for each in value for word in (option, each)]
        case _ if name == "model":
            return [value]
    return [option, str(value)]


def as_value(name: str, folder: Path = Path()) -> Any:
    value = VALUES[name]
    if isinstance(value, list):
        return tuple(value)
    return folder / value if name in {"api_key_file", "tls_cert", "tls_key", "response_store"} else value


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PARALLAX_LOG_FORMAT", "text")  # options change it
    monkeypatch.chdir(tmp_path)


def test_every_setting_is_tried() -> None:
    assert VALUES.keys() == list_keys(ServeSettings).keys()


def test_options_of_serve_are_its_settings_with_their_defaults() -> None:
    command = typer.main.get_command(app)
    others = {"config", "help", "settings", *list_switches("serve", ())}
    options = {each.name: each.default for each in command.params if each.name not in others}
    assert set(options) == set(VALUES)
    defaults = {name: key.default for name, key in list_keys(ServeSettings).items()}
    assert {name: value or None for name, value in options.items()} == {n: v or None for n, v in defaults.items()}


def test_every_setting_can_be_given_as_flag_key_variable_and_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = {name: as_value(name) for name in VALUES}

    def read(*arguments: str) -> dict[str, Any]:
        settings = run(*arguments)
        return {name: getattr(settings, name) for name in VALUES}

    defaults = read()
    assert [name for name in VALUES if defaults[name] == wanted[name]] == []
    assert read(*(word for name, value in VALUES.items() for word in as_flags(name, value))) == wanted
    texts = {
        name: ",".join(value) if isinstance(value, list) else json.dumps(value).strip('"')
        for name, value in VALUES.items()
    }
    assert read(*(word for name, text in texts.items() for word in ("--set", f"{name}={text}"))) == wanted
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in VALUES.items())
    (tmp_path / "own.toml").write_text("".join(["[serve]\n", *lines]))
    assert read("--config", "own.toml") == wanted
    for name, text in texts.items():
        monkeypatch.setenv(name_variable("serve", name), text)
    assert read() == wanted


def test_flag_comes_first_even_when_it_says_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_SERVE__PORT", "9")
    monkeypatch.setenv("PARALLAX_SERVE__VERBOSE", "true")
    assert (run("--port", "8000").port, run("--no-verbose").verbose, run("-v").verbose) == (8000, False, True)


def run_all(*arguments: str) -> Result:
    """Return what the command line of serve prints for options that it refuses, or that it is given with a code."""
    command = new_app()

    @command.command()
    @from_section("serve", ServeSettings)
    def serve(settings: ServeSettings, config: Config) -> None:
        print(settings.max_waiting, settings.lenient, settings.cors_origin)

    return CliRunner().invoke(command, arguments)


def test_option_that_is_not_listed_works_with_a_hint() -> None:
    done = run_all("--max-waiting", "7", "--lenient", "--port", "9")
    assert (done.exit_code, done.stdout) == (0, "7 True ()\n")
    assert done.stderr.splitlines() == [
        "hint: `--max-waiting` is now `--set max_waiting=VALUE`",
        "hint: `--lenient` is now `--set lenient=VALUE`",
    ]
    assert "--max-waiting" not in run_all("--help").stdout


def test_format_of_the_log_holds_for_all_that_follows() -> None:
    done = run_all("--log-format", "json")
    assert json.loads(done.stderr)["message"] == "hint: `--log-format` is now `--set log_format=VALUE`"
    assert writes_json()


def test_setting_is_set_by_its_key_after_file_and_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[serve]\nmax_waiting = 1\n")
    monkeypatch.setenv("PARALLAX_SERVE__MAX_WAITING", "2")
    given = ("--config", "own.toml", "--set", "max-waiting=3", "--set", "cors_origin=https://a,https://b")
    done = run_all(*given)
    assert (done.stdout, done.stderr) == ("3 False ('https://a', 'https://b')\n", "")
    assert run_all(*given, "--max-waiting", "4").stdout.startswith("4 ")
    assert run_all("--set", "max_waiting=3", "--set", "max_waiting=5").stdout.startswith("5 ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_waiting", "--set max_waiting is not KEY=VALUE"),
        ("=3", "--set =3 is not KEY=VALUE"),
        ("max_waiting=many", "--set max_waiting is 'many': expected an integer from 0 to 1000000"),
        ("max_wating=3", "--set max_wating: there is no such setting"),
    ],
)
def test_setting_that_is_none_is_refused(text: str, message: str) -> None:
    error = run_all("--set", text).exception
    assert isinstance(error, UsageError)
    assert error.message == message


def load(*arguments: str) -> Config:
    """Return the configuration that a command with the options of serve gets."""
    seen: list[Config] = []
    command = typer.Typer()

    @command.command()
    @from_section("serve", ServeSettings)
    def serve(settings: ServeSettings, config: Config) -> None:
        seen.append(config)

    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return seen[0]


def test_configuration_says_which_option_gave_a_setting() -> None:
    flags = [word for name, value in VALUES.items() for word in as_flags(name, value)]
    found = {each.key.name: (each.value, each.origin.name) for each in load(*flags).explain("serve", ServeSettings)}
    assert found == {name: (as_value(name), f"--{name.replace('_', '-')}") for name in VALUES}


def test_key_of_another_section_is_set_by_its_name() -> None:
    config = load("--set", "web.enabled=false", "--set", "max_waiting=3", "--set", "web.enabled=true")
    assert {name: (each.value, each.origin.name) for name, each in config.sections["web"].items()} == {
        "enabled": ("true", "--set web.enabled")
    }
    assert config.sections["serve"]["max_waiting"].value == "3"


def offer_switches(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    points = [EntryPoint(name, "nothing:here", "parallax.switches.serve") for name in names]
    monkeypatch.setattr("parallax_core.cli.option.entry_points", lambda group: EntryPoints(points).select(group=group))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), None),
        (("--no-my-page",), (False, "--no-my-page")),
        (("--my-page", "--set", "my_page.enabled=false"), (True, "--my-page")),
    ],
)
def test_plugin_is_switched_off_by_an_option_that_it_names(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], found: tuple[bool, str] | None
) -> None:
    offer_switches(monkeypatch, "my_page")
    written = load(*arguments).sections.get("my_page", {}).get("enabled")
    assert (written and (written.value, written.origin.name)) == found
    assert "my-page" not in run_all("--help").stdout


def test_switch_of_a_plugin_takes_no_option_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_switches(monkeypatch, "lenient")
    assert list_switches("serve", list_keys(ServeSettings)) == []
    assert run("--lenient").lenient


def test_help_has_options_below_headings() -> None:
    shown = run_all("--help").stdout
    headings = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert headings[0] == "Arguments"
    assert headings[-1] == "Options"
    assert {"HTTP", "The model"} < set(headings)


def test_every_setting_of_the_edge_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k")
    (tmp_path / "keys").chmod(0o600)
    options = make_options(run(*(word for name, value in VALUES.items() for word in as_flags(name, value))))
    assert (options.keys.find_role("k"), list(options.cors_origins)) == ("user", ["https://a", "https://b"])
    assert set(options.hosts) == {"localhost", "127.0.0.1", "::1", "llm.lan", "b"}
    assert (options.max_concurrent, options.max_per_minute, options.is_lenient, options.logs_bodies) == (
        1,
        2,
        True,
        True,
    )
    assert (options.tls_cert, options.tls_key, options.request_s, options.drain_s) == (
        Path("cert"),
        Path("key"),
        3.5,
        4.5,
    )
    assert options.served_names == ("gpt-4o", "claude-sonnet-4-5")
    assert (options.otlp_endpoint, options.keep_alive_s) == ("http://o", 5.5)
