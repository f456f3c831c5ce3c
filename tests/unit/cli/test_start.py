"""How the command begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tinymodel import write_model

# Interrupts the process when a module is looked for that only the command line needs.
SCRIPT = """
import os, signal, sys
from parallax_core.__main__ import main

class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interruption())
sys.argv = ["parallax", "--version"]
main()
"""


def test_interrupt_while_the_command_is_imported_ends_it_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("before", ["", "trap '' INT; "])
def test_interrupt_that_is_ignored_stays_ignored(before: str) -> None:
    command = ["sh", "-c", f'{before}exec "$0" "$@"', sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.startswith("parallax 0.")) == ((0, True) if before else (130, False))


def test_package_can_be_run() -> None:
    command = [sys.executable, "-m", "parallax_core", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("parallax 0.")


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parallax_core", *words]
    env = {**os.environ, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["sevre"], "hint: did you mean `parallax serve`?"),
        (["xyzzy"], "hint: see `parallax --help`"),
        (["models", "lst"], "hint: did you mean `parallax models list`?"),
        (["run", "-m", "MODEL"], "hint: name the model itself, as in `parallax run MODEL`"),
    ],
)
def test_misspelt_command_gets_a_hint(words: list[str], hint: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No such ")
    assert hint in done.stderr


def test_name_that_the_output_cannot_encode_has_question_marks(tmp_path: Path) -> None:
    folder = tmp_path / "M\u00f6bius \u6a21\u578b"
    folder.mkdir()
    write_model(folder)
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    shown = run("models", "show", str(folder), PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "M?bius ??" in shown.stdout
