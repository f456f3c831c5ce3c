"""The kit for commands passes those of this project, and catches a fault of each sort."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from parallax_cluster.config.rendezvous import RendezvousSettings
from parallax_core.testing.command import CommandConformance
from tests.conformance.harness import find_failures, run_test

GOOD = '''"""Greet whoever you like."""

from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)

@app.command()
def hello(name: Annotated[str, typer.Option(help="Whom to greet.")] = "world") -> None:
    """Greet."""
'''
LINE, HELP = "test_list_of_commands_has_a_line_for_it", "test_help_of_each_command_says_what_it_does"
PLAIN = "test_help_is_plain"
LIGHT, USAGE = "test_help_needs_no_framework", "test_option_that_it_does_not_have_is_a_wrong_usage"
LOOSE = "@app.command(context_settings={'ignore_unknown_options': True, 'allow_extra_args': True})"
FAULTS = {
    "no line": (('"""Greet whoever you like."""', ""), LINE),
    "a long line": (("Greet whoever", "Greet whoever" + " and" * 30), LINE),
    "no help": (('    """Greet."""', "    pass"), HELP),
    "an option without help": (('typer.Option(help="Whom to greet.")', "typer.Option()"), HELP),
    "rich help": (("rich_markup_mode=None, ", ""), PLAIN),
    "its own completion": ((", add_completion=False", ""), PLAIN),
    "a framework": (("import typer\n", "import typer, fastapi\n"), LIGHT),
    "an import that fails": (("import typer\n", "import typer, sys\nassert sys.argv[0] != '-c'\n"), LIGHT),
    "any option": (("@app.command()", LOOSE), USAGE),
}


class TestRendezvous(CommandConformance):
    place = "parallax_cluster.cli.rendezvous:app"
    sections = (RendezvousSettings,)


class TestKeys(CommandConformance):
    place = "parallax_transport_zmq.cli:app"


class TestSimulate(CommandConformance):
    place = "parallax_simulate.cli:app"


class TestQuantize(CommandConformance):
    place = "parallax_quantize.cli:app"


class TestNetwork(CommandConformance):
    place = "parallax_netcheck.cli:app"


class TestBatch(CommandConformance):
    place = "parallax_batch.cli:app"


class TestChat(CommandConformance):
    place = "parallax_chat.cli:app"


class TestConfig(CommandConformance):
    place = "parallax_manage.config:app"


class TestDoctor(CommandConformance):
    place = "parallax_manage.doctor:app"


class TestModels(CommandConformance):
    place = "parallax_manage.models:app"


class TestPlugins(CommandConformance):
    place = "parallax_manage.plugins:app"


class TestEngines(CommandConformance):
    place = "parallax_engines.cli:app"


class TestNewPlugin(CommandConformance):
    place = "parallax_scaffold.cli:app"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> type[CommandConformance]:
    """Return the kit of a command whose code was changed."""
    (before, after) = getattr(request, "param", ("", ""))
    name = f"greeter_{abs(hash((before, after)))}"
    assert before in GOOD
    (tmp_path / f"{name}.py").write_text(GOOD.replace(before, after) if before else GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return type("Kit", (CommandConformance,), {"place": f"{name}:app"})


def test_good_command_passes(kit: type[CommandConformance]) -> None:
    assert find_failures(kit) == {}


@pytest.mark.parametrize(("kit", "test"), FAULTS.values(), ids=FAULTS, indirect=["kit"])
def test_fault_is_caught(kit: type[CommandConformance], test: str) -> None:
    assert "The contract says" in run_test(kit, test)


@dataclass(frozen=True)
class Extra:
    """A section whose keys the command does not have."""

    volume: Annotated[int, Meta(description="How loud it greets.")] = 3


@dataclass(frozen=True)
class Silent:
    """A section whose key does not say what it means."""

    name: str = ""


@pytest.mark.parametrize("section", [Extra, Silent])
def test_section_that_is_not_its_options_is_caught(kit: type[CommandConformance], section: type[object]) -> None:
    with_section = type("Kit", (kit,), {"sections": (section,)})
    assert "every key of the section" in run_test(with_section, "test_keys_of_its_sections_are_options_with_meanings")
