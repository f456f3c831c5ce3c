from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.plugins.site import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Return a folder of distributions that this process finds, with an empty configuration."""
    for variable in [name for name in os.environ if name.startswith("PARALLAX_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for module in set(sys.modules) - before:
        if module.endswith("_plugin"):
            del sys.modules[module]
