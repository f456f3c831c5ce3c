"""The tests of an engine or a plugin run again after each change of what they stand on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.example import ALONE
from tests.support import passed
from tests.support.passed import (
    ENGINE,
    ROOT,
    digest_sources,
    has_passed,
    list_options,
    list_sources,
    list_suites,
    record,
)

RELEASE, PLUGIN = "vllm-0.32.0", "plugins/source_disk"
FILES = {
    "conftest.py": "",
    "constraints.txt": "numpy==2",
    "pyproject.toml": "[project]\ndependencies = ['numpy']\n[tool.ruff]\nline-length = 120",
    "parallax_core/__init__.py": "",
    "parallax_core/api.py": "from parallax_core.base import files",
    "parallax_core/base/__init__.py": "",
    "parallax_core/base/files.py": "LATER = 'parallax_core.base.later:run'",
    "parallax_core/base/later.py": "def run(): import parallax_core.base.last",
    "parallax_core/base/last.py": "",
    "parallax_core/server.py": "",
    "tests/support/shared.py": "",
    "tests/data/words.txt": "one two",
    f"{PLUGIN}/pyproject.toml": "[project]",
    f"{PLUGIN}/csrc/disk.c": "int main;",
    f"{PLUGIN}/parallax_disk/__init__.py": "import parallax_core.api",
    f"{PLUGIN}/tests/test_disk.py": "from tests.support import shared\nimport parallax_disk",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


@pytest.mark.parametrize("touched", sorted(FILES.keys() - {"parallax_core/server.py", "pyproject.toml"}))
def test_change_of_what_a_plugin_stands_on_is_seen(tree: Path, touched: str) -> None:
    assert list_suites(tree) == [PLUGIN]
    assert not has_passed(tree, PLUGIN)
    record(tree, [PLUGIN])
    assert has_passed(tree, PLUGIN)
    later = shutil.copytree(tree, tree.with_name("later"))  # modules of a tree are read once
    (later / touched).write_text(f"{FILES[touched]}\n")
    assert not has_passed(later, PLUGIN)


def test_change_of_anything_else_is_not(tree: Path) -> None:
    record(tree, [PLUGIN])
    (tree / "parallax_core/server.py").write_text("import this")
    (tree / "pyproject.toml").write_text(FILES["pyproject.toml"].replace("120", "100"))
    (tree / "README.md").write_text("A project.")
    assert has_passed(tree, PLUGIN)
    (tree / "pyproject.toml").write_text(FILES["pyproject.toml"].replace("numpy", "scipy"))
    assert not has_passed(tree, PLUGIN)


def test_module_that_is_imported_from_now_on_counts(tree: Path) -> None:
    path = tree / "parallax_core/base/last.py"
    path.write_text("import parallax_core.server")
    record(tree, [PLUGIN])
    (tree / "parallax_core/server.py").write_text("import this")
    assert not has_passed(tree, PLUGIN)


def test_other_machine_runs_all(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tree, [PLUGIN])
    monkeypatch.setattr(passed, "_describe_machine", lambda: ["3.14.0", "Linux", "riscv64"])
    assert not has_passed(tree, PLUGIN)


def test_tests_that_have_passed_are_left_out(tree: Path) -> None:
    (tree / PLUGIN / "tests/test_disk.py").write_text("def test_disk(): pass")
    (tree / "plugins/other/tests").mkdir(parents=True)
    (tree / "plugins/other/tests/test_other.py").write_text("def test_other(): pass")
    (tree / "pytest.ini").write_text("[pytest]\ntestpaths = plugins/*/tests\n")
    for options, collected in (([], ["disk", "other"]), (list_options([PLUGIN]), ["other"])):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
        ran = subprocess.run(
            command, cwd=tree, env={**os.environ, **ALONE}, capture_output=True, text=True, check=False
        )
        assert [name for name in ("disk", "other") if f"test_{name}.py::" in ran.stdout] == collected, ran.stdout


def make_sources(root: Path) -> None:
    for name in (*ENGINE, "plugins/backend_vllm/parallax_backend_vllm", "plugins/backend_vllm/tests"):
        path = root / (name if name.endswith(".py") else f"{name}/inner/module.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    (root / "tests").mkdir(exist_ok=True)


@pytest.mark.parametrize("touched", [*ENGINE, "plugins/backend_vllm/parallax_backend_vllm"])
def test_change_of_what_an_engine_stands_on_is_seen(tmp_path: Path, touched: str) -> None:
    make_sources(tmp_path)
    assert not has_passed(tmp_path, RELEASE)
    record(tmp_path, [RELEASE])
    assert has_passed(tmp_path, RELEASE)
    assert not has_passed(tmp_path, "vllm-0.31.0")
    path = tmp_path / (touched if touched.endswith(".py") else f"{touched}/inner/module.py")
    path.write_text("two")
    assert not has_passed(tmp_path, RELEASE)
    path.write_text("one")
    assert has_passed(tmp_path, RELEASE)


def test_name_of_a_source_counts(tmp_path: Path) -> None:
    make_sources(tmp_path)
    record(tmp_path, [RELEASE])
    path = tmp_path / "parallax_core/wire/inner/module.py"
    path.rename(path.with_name("other.py"))
    assert not has_passed(tmp_path, RELEASE)


def test_other_changes_do_not_count(tmp_path: Path) -> None:
    make_sources(tmp_path)
    record(tmp_path, [RELEASE])
    for name in ("plugins/backend_vllm/README.md", "plugins/backend_vllm/tests/inner/module.py"):
        (tmp_path / name).write_text("two")
    assert has_passed(tmp_path, RELEASE)


def test_every_source_exists() -> None:
    assert all((ROOT / name).exists() for name in ENGINE)
    sources = {str(path.relative_to(ROOT)) for path in list_sources(ROOT, RELEASE)}
    assert "plugins/backend_vllm/pyproject.toml" in sources
    assert "plugins/backend_vllm/engine_tests/test_vllm_engine.py" in sources
    assert digest_sources(ROOT, RELEASE) == digest_sources(ROOT, RELEASE)


def test_plugins_of_the_repository_stand_on_their_contracts_and_kits() -> None:
    sources = {str(path.relative_to(ROOT)) for path in list_sources(ROOT, "plugins/backend_torch")}
    kernel = next(path for path in (ROOT / "plugins/backend_torch/csrc").iterdir() if path.is_file())
    assert {
        "conftest.py",
        "parallax_core/contracts/stage.py",
        "parallax_core/testing/stage.py",
        f"plugins/backend_torch/csrc/{kernel.name}",
        "plugins/models/parallax_models/__init__.py",
        "plugins/sampling_torch/parallax_sampling_torch/__init__.py",
        "tests/support/checkpoints.py",
    } <= sources
    assert "parallax_core/server/app.py" not in sources
