from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_case.py").write_text(f"import pytest\n\n{source}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    settings = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the rule needs none, and they take a second
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=60, check=False)


SKIPS = {
    "today": "def test_it(): pytest.skip('not today')",
    "slow": "@pytest.mark.skipif(True, reason='slow')\ndef test_it(): pass",
    "known": "@pytest.mark.xfail(reason='known')\ndef test_it(): assert False",
    "no_such_module": "pytest.importorskip('no_such_module')",
    "the whole file": "def test_good(): pass\npytest.skip('the whole file', allow_module_level=True)",
}
"""Tests that are skipped, by what the run says of each."""


def test_run_fails_when_tests_are_skipped(tmp_path: Path) -> None:
    for number, source in enumerate(SKIPS.values()):
        (tmp_path / f"test_{number}.py").write_text(f"import pytest\n\n{source}\n")
    ran = run_pytest(tmp_path, "def test_passing(): pass")
    assert ran.returncode == 1, ran.stdout
    assert "1 passed, 4 skipped, 1 xfailed" in ran.stdout, "without the rule, this run succeeds"
    refused = ran.stdout.partition("skipped without a missing device or instruction")[2]
    for number, reason in enumerate(SKIPS):
        [line] = [line for line in refused.splitlines() if line.startswith(f"test_{number}.py")]
        assert reason in line


@pytest.mark.parametrize("reason", ["needs Metal", "there is no CUDA device", "this processor lacks avx512"])
def test_run_passes_when_the_device_or_instruction_is_missing(tmp_path: Path, reason: str) -> None:
    ran = run_pytest(tmp_path, f"def test_it(): pytest.skip({reason!r})\ndef test_other(): pass")
    assert ran.returncode == 0, ran.stdout


def test_rule_is_in_force_where_processes_share_the_tests(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text("import pytest\n\npytest.importorskip('no_such_module')\n")
    source = "def test_it(): pytest.skip('not today')\ndef test_good(): pass"
    ran = run_pytest(tmp_path, source, "-p", "xdist.plugin", "--numprocesses", "2")
    assert ran.returncode == 1, ran.stdout
    assert "No module named 'no_such_module'" in ran.stdout
    assert "test_it: Skipped: not today" in ran.stdout
    assert "2 skipped" in ran.stdout
