"""The examples of docs/reference/testing.md work as they stand."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/testing.md").read_text(encoding="utf-8")


def test_example_of_a_stage_passes_as_a_module_of_its_own(tmp_path: Path) -> None:
    example = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "TestMyStage" in block)
    (tmp_path / "test_mine.py").write_text(example, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    settings = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout
    assert int(re.findall(r"(\d+) passed", ran.stdout)[0]) > 70


def test_every_kit_that_is_named_exists() -> None:
    names = re.findall(r"`(parallax_core\.testing\.\w+)\.(\w+)`", PAGE)
    assert len(names) > 5
    assert [name for module, name in names if not hasattr(importlib.import_module(module), name)] == []
