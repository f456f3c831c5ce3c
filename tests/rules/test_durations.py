"""No test takes more than its tier may: neither in the record of durations, nor in any run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import TIERS, find_bound

ROOT = Path(__file__).parents[2]
RECORD: dict[str, Any] = json.loads((ROOT / "tests/durations.json").read_text())
BUSY = """
import time

def test_busy():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass

def test_waits():
    time.sleep(0.4)
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    settings = (ROOT / "conftest.py").read_text()
    assert '"": 90.0}' in settings
    (folder / "conftest.py").write_text(settings.replace('"": 90.0}', '"": 0.2}'))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_case.py").write_text(BUSY)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "--numprocesses", "1")], ids=["alone", "shared"])
def test_run_fails_for_a_test_that_computes_too_long(tmp_path: Path, options: tuple[str, ...]) -> None:
    ran = run_pytest(tmp_path, *options, "--store-durations", "durations.json")
    assert ran.returncode == 1, ran.stdout
    assert "2 passed" in ran.stdout
    assert "test_case.py::test_busy: 0." in ran.stdout
    assert "test_waits" not in ran.stdout
    stored = json.loads((tmp_path / "durations.json").read_text())["test_case.py"]
    assert stored["tests"] == 2
    assert stored["seconds"] >= 0.7
    assert 0.3 <= stored["processor_s"] < 0.7


def test_bound_is_that_of_the_first_tier_that_fits() -> None:
    assert find_bound("tests/unit/base/test_ids.py::test_it") == TIERS["tests/unit/"]
    assert find_bound("plugins/bench/tests/test_it.py::test_it") == TIERS[""]


def test_recorded_tests_are_within_their_bounds() -> None:
    over = [
        f"{path}::{name}"
        for path, entry in RECORD.items()
        for name, (_, processor_s) in entry.get("slow", {}).items()
        if processor_s > find_bound(path)
    ]
    assert over == []


def test_record_knows_the_files_of_tests() -> None:
    files = {str(path.relative_to(ROOT)) for tier in TIERS if tier for path in (ROOT / tier).glob("**/test_*.py")}
    missing = sorted(files - RECORD.keys())
    assert len(missing) <= len(files) // 5, f"store them: make unit DURATIONS=tests/durations.json\n{missing}"
