"""What the kits quote is in the contracts and hooks, word for word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import parallax_core.base
import parallax_core.contracts
import parallax_core.testing
import parallax_core.wire
from parallax_core import hookspecs
from parallax_core.testing import promise

QUOTING = {"broken": 1, "expect": 2, "expect_hint": 1, "within": 3}
"""The functions that take a promise, and which of their arguments it is."""


def read_sources(package: object) -> dict[str, ast.Module]:
    folder = Path(str(getattr(package, "__file__", ""))).parent
    return {
        str(path.relative_to(folder)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    }


def flatten(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def list_quotes(module: ast.Module) -> Iterator[str]:
    """Yield the promises a module quotes, by name or in place."""
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in QUOTING:
            quoted = node.args[QUOTING[node.func.id]]
            if isinstance(quoted, ast.Constant):
                yield str(quoted.value)
            elif isinstance(quoted, ast.Name) and quoted.id in constants:
                yield str(constants[quoted.id])


def test_every_promise_is_one_of_the_contracts() -> None:
    packages = (parallax_core.base, parallax_core.contracts, parallax_core.wire)
    modules = [module for package in packages for module in read_sources(package).values()]
    modules.append(ast.parse(Path(str(hookspecs.__file__)).read_text(encoding="utf-8")))
    texts = [
        flatten(node.value)
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    quotes = {
        (name, quote) for name, module in read_sources(parallax_core.testing).items() for quote in list_quotes(module)
    }
    assert quotes
    assert {(name, quote) for name, quote in quotes if not any(quote in text for text in texts)} == set()


def test_message_says_what_is_wrong_and_what_was_promised() -> None:
    assert promise.broken("it is red", "It is green") == 'it is red. The contract says: "It is green"'
