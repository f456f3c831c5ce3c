"""The tests of an engine run again after each change of what they test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine_record import ROOT, SHARED, digest_sources, has_passed, list_sources, record

RELEASE = "vllm-0.32.0"


def make_sources(root: Path) -> None:
    for name in (*SHARED, "plugins/backend_vllm/parallax_backend_vllm", "plugins/backend_vllm/tests"):
        path = root / (name if name.endswith(".py") else f"{name}/inner/module.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    (root / "tests").mkdir(exist_ok=True)


@pytest.mark.parametrize("touched", [*SHARED, "plugins/backend_vllm/parallax_backend_vllm"])
def test_change_of_what_an_engine_stands_on_is_seen(tmp_path: Path, touched: str) -> None:
    make_sources(tmp_path)
    assert not has_passed(tmp_path, RELEASE)
    record(tmp_path, RELEASE)
    assert has_passed(tmp_path, RELEASE)
    assert not has_passed(tmp_path, "vllm-0.31.0")
    path = tmp_path / (touched if touched.endswith(".py") else f"{touched}/inner/module.py")
    path.write_text("two")
    assert not has_passed(tmp_path, RELEASE)
    path.write_text("one")
    assert has_passed(tmp_path, RELEASE)


def test_name_of_a_source_counts(tmp_path: Path) -> None:
    make_sources(tmp_path)
    record(tmp_path, RELEASE)
    path = tmp_path / "parallax_core/wire/inner/module.py"
    path.rename(path.with_name("other.py"))
    assert not has_passed(tmp_path, RELEASE)


def test_other_changes_do_not_count(tmp_path: Path) -> None:
    make_sources(tmp_path)
    record(tmp_path, RELEASE)
    for name in ("plugins/backend_vllm/README.md", "plugins/backend_vllm/tests/inner/module.py"):
        (tmp_path / name).write_text("two")
    assert has_passed(tmp_path, RELEASE)


def test_every_source_exists() -> None:
    assert all((ROOT / name).exists() for name in SHARED)
    sources = {str(path.relative_to(ROOT)) for path in list_sources(ROOT, RELEASE)}
    assert "plugins/backend_vllm/pyproject.toml" in sources
    assert "plugins/backend_vllm/engine_tests/test_vllm_engine.py" in sources
    assert digest_sources(ROOT, RELEASE) == digest_sources(ROOT, RELEASE)
