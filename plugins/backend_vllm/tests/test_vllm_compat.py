"""Parts of vLLM beyond its documentation are used in the compat files only, and each is checked before it is used."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import parallax_backend_vllm
from parallax_backend_vllm import compat, engine, stage_backend
from parallax_backend_vllm.compat import ENGINE, check_interface, find_moved
from parallax_backend_vllm.compat_stage import STAGE
from parallax_backend_vllm.engine import VllmEngine
from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import BackendFailed, EnginePlan, StagePlan, Unsupported
from tests.support.checkpoints import save_family

FOLDER = Path(parallax_backend_vllm.__file__).parent
DOCUMENTED = {"vllm", "vllm.inputs", "vllm.lora.request", "vllm.sampling_params"}
"""The modules of vLLM that its documentation tells callers to import."""
MOVED = "pathlib:Way"
"""An object that is nowhere, in place of one of vLLM's."""


def list_imports(path: Path) -> Iterator[str]:
    """Yield each import of vLLM in a file, as ``module:name``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.name}:" for alias in node.names if alias.name.partition(".")[0] == "vllm")


def test_private_parts_of_vllm_are_used_in_compat_files_only() -> None:
    found = {
        (path.name, name)
        for path in FOLDER.glob("*.py")
        if not path.name.startswith("compat")
        for name in list_imports(path)
        if name.partition(":")[0] not in DOCUMENTED
    }
    assert found == set()
    assert "vllm.v1.engine.async_llm:AsyncLLM" in set(list_imports(FOLDER / "compat.py"))


def test_every_import_of_vllm_is_checked_at_load() -> None:
    parts = (path.partition(":") for path in {**ENGINE, **STAGE})
    checked = {f"{module}:{name.partition('.')[0]}" for module, _, name in parts}
    imported = {name for path in FOLDER.glob("*.py") for name in list_imports(path)}
    private = {"vllm.distributed:parallel_state"}  # its attribute _PP is checked
    assert imported - private - checked == set()


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a vLLM in place that lacks a part."""
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(compat, "find_installed", lambda: "0.32.9")


@pytest.mark.usefixtures("moved")
def test_release_whose_parts_have_moved_is_refused_with_their_names() -> None:
    with pytest.raises(
        Unsupported, match=r"vllm 0\.32\.9 has changed parts.*: pathlib:Way is gone .*; .* no telepathy"
    ):
        check_interface({MOVED: (), "pathlib:Path": ("name", "telepathy")})


@pytest.mark.usefixtures("moved")
def test_engine_names_what_has_moved_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ENGINE", {MOVED: ()})
    opened = VllmEngine(EnginePlan(model=tmp_path), VllmSettings(), is_cpu=True)
    with pytest.raises(Unsupported, match="pathlib:Way is gone") as refused:
        asyncio.run(opened.start())
    assert refused.value.hint.endswith("parallax engines install vllm")
    assert opened.health().state == "failed"


@pytest.mark.usefixtures("moved")
def test_stage_names_what_has_moved_and_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_family("qwen2", tmp_path)
    monkeypatch.setattr("parallax_backend_vllm.compat_stage.STAGE", {MOVED: ()})
    monkeypatch.setattr(stage_backend, "set_process", lambda *_: None)
    monkeypatch.setattr(stage_backend, "check_plan", lambda *_: None)
    with pytest.raises(Unsupported, match="pathlib:Way is gone"):
        stage_backend.open_stage(StagePlan(model=tmp_path), VllmSettings())


def test_vllm_that_cannot_be_imported_is_told_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(compat, "find_installed", lambda: "0.32.0")
    with pytest.raises(BackendFailed, match=r"vllm 0\.32\.0 cannot be imported: ModuleNotFoundError"):
        check_interface(ENGINE)


def test_parts_of_modules_classes_and_functions_are_found() -> None:
    assert list(find_moved({"pathlib:Path": ("name",), "pathlib:Path.rglob": ("pattern",)})) == []
