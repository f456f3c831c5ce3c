"""The command that a server names for talking to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parallax_core.cli.next_command import name_chat, name_program


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("http://127.0.0.1:8000/v1", "parallax chat"),
        ("http://0.0.0.0:8000/v1", "parallax chat"),
        ("http://127.0.0.1:8471/v1", "parallax chat --url http://127.0.0.1:8471/v1"),
        ("https://10.0.0.5:8000/v1", "parallax chat --url https://10.0.0.5:8000/v1"),
        ("http://[::]:9/v1", "parallax chat --url http://[::1]:9/v1"),
    ],
)
def test_command_names_the_server_unless_it_is_the_usual_one(
    url: str, command: str, monkeypatch: pytest.MonkeyPatch, program: Path
) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert name_chat(url) == command


def test_program_is_named_as_it_was_started_where_a_shell_would_not_find_it(
    monkeypatch: pytest.MonkeyPatch, program: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert name_program() == str(program)


def test_module_is_named_where_the_program_was_started_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/parallax_core/__main__.py", "serve"])
    assert name_program() == f"{sys.executable} -m parallax_core"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program that this one seems to have been started as."""
    place = tmp_path / "parallax"
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(place), "serve"])
    return place
