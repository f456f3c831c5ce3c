from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARALLAX = "import sys; sys.argv[0] = 'parallax'; from parallax_core.cli import main; main()"


def run(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", PARALLAX, *arguments]
    found = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_script_asks_the_program(shell: str) -> None:
    assert "_PARALLAX_COMPLETE" in run("--completion", shell)


def complete(words: str) -> list[str]:
    """Return what bash would offer for the last of ``words``."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return run(_PARALLAX_COMPLETE="complete_bash", **asked).split()


def test_commands_and_options_are_completed() -> None:
    assert complete("parallax c") == ["chat", "config", "cluster"]
    assert complete("parallax cluster co") == ["codes"]
    assert complete("parallax cluster codes re") == ["revoke"]
    assert "--max-tokens" in complete("parallax chat --raw --max")
    assert "--max-tokens" in complete("parallax chat --max")


def test_installation_writes_to_the_home_of_the_user(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert ".bash_completions/parallax.sh" in run("completion", "bash", "--install", **home)
    assert (tmp_path / ".bashrc").read_text().count("parallax.sh") == 1
    run("--install-completion", "bash", **home)
    assert (tmp_path / ".bashrc").read_text().count("parallax.sh") == 1
