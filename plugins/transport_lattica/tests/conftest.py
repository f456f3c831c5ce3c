"""Each test has a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep keys in a folder of the test's own."""
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
