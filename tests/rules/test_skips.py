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


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pytest.skip('not today')",
        "@pytest.mark.skipif(True, reason='slow')\ndef test_it(): pass",
        "@pytest.mark.xfail(reason='known')\ndef test_it(): assert False",
        "pytest.importorskip('no_such_module')",
        "def test_good(): pass\npytest.skip('the whole file', allow_module_level=True)",
    ],
)
def test_run_fails_when_a_test_is_skipped(tmp_path: Path, source: str) -> None:
    # A passing neighbour, so that the exit status is that of the rule and not "no tests ran".
    (tmp_path / "test_neighbour.py").write_text("def test_neighbour(): pass\n")
    ran = run_pytest(tmp_path, source)
    assert ran.returncode == 1, ran.stdout
    assert "skipped without a missing device or instruction" in ran.stdout


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
