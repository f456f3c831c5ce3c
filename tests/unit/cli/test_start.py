"""How the command begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
