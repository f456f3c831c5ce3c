"""The page on the life of a request names only existing modules and methods."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/life-of-a-request.md").read_text(encoding="utf-8")
MODULES = set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE))


def list_methods() -> set[tuple[str, str]]:
    """Return the class name and method name of every method in core."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "parallax_core").rglob("*.py"))
    classes = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        (found.name, each.name)
        for found in classes
        for each in found.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_modules_of_the_page_are_there() -> None:
    assert len(MODULES) > 20
    assert {name for name in MODULES if not (ROOT / "parallax_core" / name).is_file()} == set()


def test_methods_of_the_page_are_there() -> None:
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE))
    assert len(named) > 5
    assert named - list_methods() == set()


def test_page_leaves_no_part_of_the_engine_out() -> None:
    engine = {f"engine/{path.name}" for path in (ROOT / "parallax_core/engine").glob("*.py")} - {"engine/__init__.py"}
    assert engine - MODULES <= {"engine/inflight.py", "engine/prompt_logprobs.py"}
