"""The units of systemd do what they say, and every line of them is one systemd knows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from parallax_cluster.config.join import JoinSettings
from parallax_cluster.config.relay import RelayCommandSettings
from parallax_cluster.config.run import RunSettings
from parallax_core.cli import app
from parallax_core.config.schema import list_keys
from parallax_core.config.serve import ServeSettings
from parallax_core.config.worker import WorkerSettings

FOLDER = Path(__file__).parents[3] / "docs/examples/deploy"
UNITS = sorted(FOLDER.glob("*.service"))
SETTINGS = {
    "join": JoinSettings,
    "relay": RelayCommandSettings,
    "run": RunSettings,
    "serve": ServeSettings,
    "worker": WorkerSettings,
}
SCRIPT = "/srv/parallax/bin/parallax"

KNOWN = {
    "Unit": {"Description", "Documentation", "Wants", "After"},
    "Service": {
        "Type",
        "User",
        "Group",
        "StateDirectory",
        "StateDirectoryMode",
        "Environment",
        "EnvironmentFile",
        "ExecStart",
        "KillMode",
        "TimeoutStopSec",
        "Restart",
        "RestartSec",
        "RestartPreventExitStatus",
        "LimitNOFILE",
        "NoNewPrivileges",
        "PrivateTmp",
        "ProtectSystem",
        "ProtectHome",
    },
    "Install": {"WantedBy"},
}
"""Of systemd 252, the sections and what is used of them: systemd only warns of a line it does not know."""


def read_unit(path: Path) -> dict[str, dict[str, str]]:
    """Return the lines of each section."""
    sections: dict[str, dict[str, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, mark, value = line.partition("=")
            assert mark
            assert key not in section
            section[key] = value
    return sections


def test_there_are_units_for_all_that_runs_for_long() -> None:
    names = ["parallax-join", "parallax-relay", "parallax-run", "parallax-standby", "parallax-worker", "parallax"]
    assert [path.stem for path in UNITS] == names


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_settings_that_a_unit_names_are_settings_of_its_command(path: Path) -> None:
    named = set(re.findall(r"PARALLAX_(\w+?)__(\w+)=", path.read_text(encoding="utf-8")))
    command = read_unit(path)["Service"]["ExecStart"].replace(" cluster ", " ").split()[1]
    assert {section.lower() for section, _ in named} == {command}
    assert {key.lower() for section, key in named if key.lower() not in list_keys(SETTINGS[section.lower()])} == set()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_no_unit_writes_a_join_code_into_the_journal(path: Path) -> None:
    command = read_unit(path)["Service"]["ExecStart"]
    assert " run " not in command or "--code-hours 0" in command


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_has_no_line_that_systemd_does_not_know(path: Path) -> None:
    sections = read_unit(path)
    assert sections.keys() == KNOWN.keys()
    assert {name: set(lines) - KNOWN[name] for name, lines in sections.items() if set(lines) - KNOWN[name]} == {}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_command_of_a_unit_is_one_of_ours(path: Path) -> None:
    script, name, *arguments = shlex.split(read_unit(path)["Service"]["ExecStart"])
    assert script == SCRIPT
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    assert command.make_context(name, arguments).args == []  # or it says which is wrong


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_gives_its_process_more_time_to_end_than_it_takes(path: Path) -> None:
    service = read_unit(path)["Service"]
    _, _, drain = service["ExecStart"].partition("--drain ")
    assert float(service["TimeoutStopSec"]) >= float(drain or WorkerSettings().drain) + 3


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Where systemd is, it is asked; a machine without it has the tests above."""
    tool = shutil.which("systemd-analyze")
    for path in UNITS if tool else ():
        unit = tmp_path / path.name
        text = path.read_text(encoding="utf-8")
        assert SCRIPT in text
        unit.write_text(text.replace(SCRIPT, sys.executable), encoding="utf-8")
        ran = subprocess.run(
            [str(tool), "verify", "--man=no", "--recursive-errors=no", str(unit)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")
