"""Routes of plugins parse no body of a client on the server's event loop: `HttpSurface.read` does that elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("plugins/*/parallax_*", "docs/examples/*/parallax_*") for path in ROOT.glob(f"{folder}/**/*.py")
)
ROUTES = {"fastapi", "starlette"}
"""A module that imports one of these has routes."""
DECODERS = {"json", "msgspec", "orjson", "pydantic", "simplejson", "ujson"}
METHODS = {"json", "form"}
"""Methods of a request that parse its body."""


def find_imports(tree: ast.AST) -> set[str]:
    """Return the packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def find_decoders(source: str) -> Iterator[str]:
    """Yield what parses a body in a module with routes."""
    tree = ast.parse(source)
    if not (imported := find_imports(tree)) & ROUTES:
        return
    yield from sorted(imported & DECODERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr in METHODS:
                yield f".{called.attr}()"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_route_of_a_plugin_parses_no_body(path: Path) -> None:
    assert list(find_decoders(path.read_text(encoding="utf-8"))) == []


def test_some_plugin_has_routes() -> None:
    assert any(find_imports(ast.parse(path.read_text(encoding="utf-8"))) & ROUTES for path in SOURCES)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import json", ["json"]),
        ("from msgspec.json import decode", ["msgspec"]),
        ("from pydantic import BaseModel", ["pydantic"]),
        ("async def ask(http): return await http.json()", [".json()"]),
        ("async def ask(http): return await http.body()", []),
    ],
)
def test_decoder_beside_routes_is_found(line: str, found: list[str]) -> None:
    assert list(find_decoders(f"from fastapi import APIRouter\n{line}")) == found
    assert list(find_decoders(line)) == []
