"""Tests use what is public: private names of what they test are a debt that has a bound."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")])
MOST = 56
"""The most uses of private names. It only becomes less: an object gets a public member where somebody else than a test
would rightly ask the same, or the test goes through what is public."""
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace", "_request_id"}
"""Names that are public and documented: of named tuples, of `os`, and of answers of the SDK of Anthropic."""


def list_private(source: str) -> Iterator[str]:
    """Yield each use of a private name that is not of the object or class itself, and each import of one."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield ast.unparse(node)
            case ast.ImportFrom(names=names):
                yield from (alias.name for alias in names if is_private(alias.name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("self._own = cls._own = pair._replace(a=1)", []),
        ("other.name.__dict__", []),
        ("from here import _name, name as _own", ["_name"]),
        ("a._b.c._d", ["a._b.c._d", "a._b"]),
        ("self.a._b()", ["self.a._b"]),
    ],
)
def test_private_names_of_others_are_found(source: str, expected: list[str]) -> None:
    assert list(list_private(source)) == expected


def test_tests_use_no_more_private_names_than_they_did() -> None:
    found = {path: len(list(list_private(path.read_text(encoding="utf-8")))) for path in FILES}
    most = sorted(found, key=lambda path: -found[path])[:5]
    shown = ", ".join(f"{path.relative_to(ROOT)}: {found[path]}" for path in most)
    assert sum(found.values()) <= MOST, f"most of them are in {shown}"
