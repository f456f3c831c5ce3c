"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import PARALLAX, ROOT, Server, environment

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000/v1"
"""Where the README's server is; that of the tests takes a free port."""


def find_block(language: str, word: str) -> str:
    """Return the one block in a language that holds a word."""
    [found] = (text for kind, text in BLOCK.findall(README) if kind == language and word in text)
    return str(found)


def test_client_of_the_readme_gets_an_answer(server: Server, tmp_path: Path) -> None:
    code = find_block("python", "import openai")
    assert ADDRESS in code
    ran = subprocess.run(
        [sys.executable, "-c", code.replace(ADDRESS, server.url)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Paris" in ran.stdout


def test_question_of_the_readme_gets_an_answer(server: Server, tmp_path: Path) -> None:
    [line] = find_block("sh", "parallax chat").splitlines()
    written = line.partition("parallax chat ")[2]
    match = re.fullmatch(r'([^"]*)"(.*)"', written)
    assert match, line
    command = [PARALLAX, "chat", *match[1].split(), match[2], "--url", server.url]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Paris" in ran.stdout


def test_ready_line_of_the_readme_is_the_servers(server: Server) -> None:
    [line] = re.findall(r"`(ready http.*?)`", README)
    assert line.replace(ADDRESS, server.url) == server.lines[0].strip()


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
