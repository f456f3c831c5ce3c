"""The first line of a docstring is short and says plainly what something does or is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_OF_MODULE, MOST = 100, 110
"""Characters of the first line of a module's docstring, and of that of a class or function."""
PATTERNS = {
    "says who makes it happen": r"(Has|Have|Lets? an?)\b",
    "says none, not what None or empty means": r".*\b(is|are|has|have) (?-i:none)\b",
    "says how many by so many": r".*\bso many\b",
    "says nobody": r".*\bnobody\b",
    "chains what, which, whose and the like": r"(.*\b(which|whose|whom|what|those that|that of)\b){2}",
}
"""By the fault of a first line: the expression that finds it."""
FAULTS = {fault: re.compile(pattern, re.IGNORECASE) for fault, pattern in PATTERNS.items()}
NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SOURCES = sorted(
    path
    for folder in (ROOT / "parallax_core", *ROOT.glob("plugins/*/parallax_*"))
    for path in folder.rglob("*.py")
    if "templates" not in path.parts
)


def list_docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the first line of each docstring, of attributes too, and the most characters it may have; 0: any number."""
    for node in ast.walk(tree):
        body = node.body if isinstance(node, (ast.Module, *NAMED)) else ()
        for place, each in enumerate(body):
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                most = 0 if place else MOST_OF_MODULE if isinstance(node, ast.Module) else MOST
                yield each.value.value.strip().partition("\n")[0], most


def find_faults(source: str) -> list[str]:
    """Return the first lines of docstrings that break a rule, each with the rule."""
    found = []
    for line, most in list_docstrings(ast.parse(source)):
        found += [f"{fault}: {line}" for fault, pattern in FAULTS.items() if pattern.match(line)]
        if most and len(line) > most:
            found.append(f"has {len(line)} characters, {most} at most: {line}")
    return found


def test_first_lines_of_docstrings_are_plain() -> None:
    found = {str(path.relative_to(ROOT)): find_faults(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    "line",
    [
        "Has a node load a stage.",
        "Have the server forget a model.",
        "Let a sequence wait.",
        "The relay; None: there is none.",
        "The key; empty: it has none.",
        "At most so many bytes.",
        "Nobody reads it.",
        "The stage of which those that wait ask what it holds.",
        "x" * (MOST + 1),
    ],
)
def test_faulty_first_lines_are_found(line: str) -> None:
    assert len(find_faults(f'def find() -> None:\n    """{line}\n\n    More.\n    """\n')) == 1


def test_first_lines_of_modules_are_shorter() -> None:
    line = "x" * (MOST_OF_MODULE + 1)
    assert find_faults(f'"""{line}"""\n') != []
    assert find_faults(f'ONE = 1\n"""{line * 2}"""\n') == []


@pytest.mark.parametrize(
    "line", ["Forget a model that is not loaded.", "The relay, or None.", "Return the stage that holds what is wanted."]
)
def test_plain_first_lines_pass(line: str) -> None:
    assert find_faults(f'"""{line}"""\n') == []
