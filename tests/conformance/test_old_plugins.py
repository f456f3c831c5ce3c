"""Plugins that were written for this plugin API some time ago are found, and pass the kits of today."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parallax_core.api import PLUGIN_API
from tests.conformance.example import ALONE, LIMIT_S, ROOT

OLD = ROOT / "tests/data/old_plugins"
FROZEN = {
    "backend_numpy": "a2d8e7b72938cbc02855624fd04d298ad288e2dab8558224f8362f8491283531",
    "policy_rush": "e84ea4a101c760cfd8bf2c752dd75f6defa25407def435d0253e4bdf94050a12",
}
"""What each held when it was frozen."""
NAMES = tuple(FROZEN)
LONG, NIGHTLY = ("backend_numpy",), pytest.mark.nightly
"""The plugins whose kit takes long. The example of today passes the same kit in every run."""
PARALLAX = "from parallax_core.cli import main; main()"


def install(name: str, site: Path) -> dict[str, str]:
    """Put a plugin into a folder as an installer would, with its metadata; return what a process there needs."""
    shutil.copytree(OLD / name, site, ignore=shutil.ignore_patterns("__pycache__", "pyproject.toml"))
    shutil.copy(OLD / f"kit_{name}.py", site / "test_kit.py")
    project = tomllib.loads((OLD / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"parallax_{name}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(sections))
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PARALLAX_")}
    return {**bare, **ALONE, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PARALLAX_HOME": str(site)}


def run(site: Path, settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site, env=settings, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_old_plugin_is_as_it_was(name: str) -> None:
    found = hashlib.sha256()
    for path in sorted((OLD / name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(path.relative_to(OLD / name).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    assert found.hexdigest() == FROZEN[name], "what was frozen is not changed; a break needs a new plugin API"


@pytest.mark.parametrize("name", NAMES)
def test_old_plugin_is_loaded(name: str, tmp_path: Path) -> None:
    settings = install(name, tmp_path / "site")
    ran = run(tmp_path, settings, "-c", PARALLAX, "plugins", "--json")
    assert ran.returncode == 0, ran.stderr
    [found] = [each for each in json.loads(ran.stdout) if each["module"] == f"parallax_{name}.plugin"]
    assert (found["state"], found["reason"]) == ("loaded", "")
    assert found["offers"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[NIGHTLY] * (name in LONG)) for name in NAMES])
def test_old_plugin_passes_the_kit(name: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    settings = install(name, site)
    ran = run(site, settings, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout
    module = f"import parallax_{name}; print(parallax_{name}.__file__)"
    assert Path(run(site, settings, "-c", module).stdout.strip()).is_relative_to(site)


def test_old_plugins_state_the_api_of_today() -> None:
    stated = {
        version
        for name in NAMES
        for version in tomllib.loads((OLD / name / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "entry-points"
        ]["parallax.api"]
    }
    assert stated == {str(PLUGIN_API)}
