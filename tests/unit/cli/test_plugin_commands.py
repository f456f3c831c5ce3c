"""Sub-commands of plugins, as processes: what is shown, what is imported, what goes wrong."""

from __future__ import annotations

import pytest

from tests.unit.plugins.site import Site

HELLO = """
import typer
open("imported", "w").close()
app = typer.Typer(help="Greets.")

@app.command()
def hello(name: str = "world", code: int = 0) -> None:
    if name == "nobody":
        raise LookupError("who?")
    print(f"hello {name}")
    raise typer.Exit(code)
"""


def test_help_lists_commands_of_plugins_without_importing_them(site: Site) -> None:
    site.install_command("greeter", "hello", HELLO)
    done = site.run("--help")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["hello", "A", "command.", "(greeter)"] in lines
    assert not (site.folder / "imported").exists()


def test_help_lists_a_command_with_the_first_line_of_its_module_under_its_own_heading(site: Site) -> None:
    site.install_command("greeter", "hello", '"""Greet whoever you like."""\n' + HELLO)
    assert "hello Greet whoever you like. (greeter)" in " ".join(site.run("--help").stdout.split())
    site.state("greeter", {"parallax.commands.kind_words": "hello = greeter_plugin:app"})
    shown = site.run("--help").stdout
    assert "\nKind words:\n  hello  Greet whoever you like.\n" in shown
    assert not (site.folder / "imported").exists()
    assert site.run("hello").stdout == "hello world\n"


def test_command_of_a_plugin_is_listed_among_the_first_ones_after_serve(site: Site) -> None:
    site.install_command("greeter", "hello", '"""Greet whoever you like."""\n' + HELLO)
    site.state("greeter", {"parallax.commands.commands": "hello = greeter_plugin:app"})
    shown = site.run("--help").stdout
    assert shown.count("Commands:\n") == 1
    names = [line.split()[0] for line in shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert names == ["serve", "chat", "config", "doctor", "hello", "models", "plugins", "top"]


def test_plugin_adds_a_sub_command_to_parallax_plugins(site: Site) -> None:
    site.install_command("greeter", "hello", '"""Greet whoever you like."""\n' + HELLO)
    site.state("greeter", {"parallax.commands.plugins": "hello = greeter_plugin:app"})
    assert "hello" not in site.run("--help").stdout
    assert not (site.folder / "imported").exists()
    assert "\n  hello" in site.run("plugins", "--help").stdout
    assert site.run("plugins", "hello").stdout == "hello world\n"
    assert "did you mean" in site.run("plugins", "helo").stderr


def test_command_of_a_plugin_runs_with_its_options_and_exit_code(site: Site) -> None:
    site.install_command("greeter", "hello", HELLO)
    done = site.run("hello", "--name", "you", "--code", "3")
    assert (done.stdout, done.returncode) == ("hello you\n", 3)
    assert "--name" in site.run("hello", "--help").stdout
    wrong = site.run("hello", "--nome", "x")
    assert (wrong.returncode, "hint: did you mean `--code` or `--name`?" in wrong.stderr) == (2, True)


def test_command_that_raises_is_an_error_of_its_distribution(site: Site) -> None:
    site.install_command("greeter", "hello", HELLO)
    done = site.run("hello", "--name", "nobody")
    assert done.returncode == 1
    assert "error: command 'hello' of greeter 1.0 failed: LookupError: who?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in site.run("hello", "--name", "nobody", PARALLAX_TRACE_HOOKS="1").stderr


def test_full_disk_is_no_fault_of_a_command(site: Site) -> None:
    site.install_command("greeter", "hello", HELLO.replace("LookupError(", "OSError(28, "))
    done = site.run("hello", "--name", "nobody")
    assert done.returncode == 1
    assert done.stderr.startswith("error: [Errno 28] who?\nhint: the usual reason is a full disk")


@pytest.mark.parametrize(
    ("code", "error", "hint"),
    [
        ("import not_there", "cannot be loaded: ModuleNotFoundError", "pip install not_there"),
        ("app = 3", "cannot be loaded: TypeError: greeter_plugin:app is no typer.Typer", "report it"),
        ("", "cannot be loaded: AttributeError", "report it"),
        ("import typer\napp = typer.Typer()", "cannot be loaded: RuntimeError", "report it"),
        ("raise SystemExit(0)", "it tried to end the process", "report it"),
    ],
)
def test_command_that_cannot_be_loaded_is_told_without_a_traceback(
    site: Site, code: str, error: str, hint: str
) -> None:
    site.install_command("greeter", "hello", code)
    assert site.run("--help").returncode == 0
    done = site.run("hello")
    assert done.returncode == 1
    assert f"error: command 'hello' of greeter 1.0 {error}".replace("1.0 it", "1.0 cannot be loaded: it") in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_name_of_ours_is_not_taken(site: Site) -> None:
    site.install_command("greeter", "serve", HELLO)
    assert "OpenAI-compatible" in site.run("serve", "--help").stdout
    assert not (site.folder / "imported").exists()
    sentence = "command 'serve' is refused: it is one of Parallax's own"
    assert f"greeter_plugin: {sentence}" not in site.run("--help").stderr
    assert sentence in site.run("plugins").stdout
    assert f"WARNING plugin serve: {sentence}" in site.run("doctor").stdout


def test_two_commands_of_one_name_are_a_conflict_until_one_is_preferred(site: Site) -> None:
    for name in ("one", "two"):
        site.install_command(name, "hello", HELLO.replace("hello {name}", f"{name} says hello"))
    assert "Offered by both one and two." in site.run("--help").stdout
    done = site.run("hello")
    assert done.returncode == 1
    assert "error: command 'hello' is offered by both one and two" in done.stderr
    (site.folder / "parallax.toml").write_text("[plugins]\nprefer.command.hello = 'two'\n")
    assert site.run("hello").stdout == "two says hello\n"
    shown = site.run("plugins").stdout
    assert "command 'hello' is not used: another distribution is preferred" in shown
    assert shown.count("commands: hello") == 1


def test_of_two_commands_of_one_name_the_disabled_one_stands_aside(site: Site) -> None:
    for name in ("one", "two"):
        site.install_command(name, "hello", HELLO.replace("hello {name}", f"{name} says hello"))
    assert site.run("hello", PARALLAX_PLUGINS_DISABLED="two").stdout == "one says hello\n"
    conflict = "command 'hello' is offered by both one and two: choose one, with prefer.command.hello = \"one\""
    assert site.run("plugins").stdout.count(conflict) == 1


@pytest.mark.parametrize(
    ("groups", "changes", "reason"),
    [
        ({"parallax.api": "2 = greeter_plugin"}, {}, "incompatible: built for plugin API 2; this is 1"),
        ({}, {"PARALLAX_PLUGINS_DISABLED": "greeter"}, "disabled: named in PARALLAX_PLUGINS_DISABLED"),
    ],
)
def test_command_of_a_distribution_that_is_not_wanted_is_not_imported(
    site: Site, groups: dict[str, str], changes: dict[str, str], reason: str
) -> None:
    site.install_command("greeter", "hello", HELLO, groups)
    done = site.run("hello", **changes)
    assert done.returncode == 1
    assert f"error: command 'hello' of greeter 1.0 is {reason}" in done.stderr
    assert not (site.folder / "imported").exists()
