"""What a module is about is read without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parallax_core.cli.module_summary import find_source, read_summary


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ('"""Greet."""', "Greet."),
        ("# a comment\n\n'''\nGreet.\n\nAt length.\n'''", "Greet."),
        ('r"Greet."', "Greet."),
        ("import os", ""),
        ("", ""),
    ],
)
def test_summary_is_the_first_line_of_the_docstring(package: Path, code: str, line: str) -> None:
    (package / "commands.py").write_text(code)
    assert read_summary("lazy_package.commands") == line
    assert "lazy_package" not in sys.modules


def test_module_without_a_source_has_no_summary(package: Path) -> None:
    assert find_source("lazy_package") == package / "__init__.py"
    for name in ("lazy_package.nowhere", "nowhere.at_all", "sys", "lazy_package.nowhere.deeper"):
        assert read_summary(name) == ""
    (package / "binary.py").write_bytes(b"\xff\xfe")
    assert read_summary("lazy_package.binary") == ""
