"""Runs the tests of the example packages as an author does, in a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.parent.name: path.parent for path in sorted(ROOT.glob("docs/examples/*/pyproject.toml"))}
LIMIT_S = 150
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables that give pytest the environment of an author without pytest plugins."""


def copy_example(name: str, folder: Path) -> Path:
    """Copy a package to a folder, without caches."""
    copy = folder / name
    shutil.copytree(EXAMPLES[name], copy, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.egg-info"))
    return copy


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a package that is not installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    path = os.pathsep.join([str(folder), str(ROOT)])
    settings = {**os.environ, **ALONE, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
