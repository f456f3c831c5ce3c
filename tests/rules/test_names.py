"""No type name is defined twice in core, and no name contains a word that the glossary excludes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "parallax_core"
GLOSSARY = ROOT / "docs/reference/words.md"

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
"""A word of a name, in snake case or in camel case."""

EXCEPTIONS: dict[str, str] = {
    "chain": "the testing kit composes stages without a head, so it is not a pipeline",
    "Chain": "the same",
    "ReadJob": "a frame between two processes of a server, not a request",
}
"""Names that keep an excluded word, and the reasons."""


def read_excluded(page: str) -> set[str]:
    """Return the single words of the glossary's last column."""
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ") and not line.startswith("| Word")]
    words = {word.strip() for row in rows for word in row[3].split(",")}
    return {word for word in words if re.fullmatch(r"[a-z]+", word)}


def list_modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of core, without the templates of plugin packages."""
    for path in sorted(CORE.rglob("*.py")):
        name = path.relative_to(CORE).as_posix()
        if "templates/" not in name:
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def list_classes(tree: ast.Module) -> list[str]:
    """Return the public classes and type aliases of a module."""
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assigned = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign) and is_type(node.value)]
    return [
        *filter(is_public, classes),
        *(each.id for each in assigned if isinstance(each, ast.Name) and is_public(each.id)),
    ]


def is_type(value: ast.expr) -> bool:
    """Return whether an expression may denote a type, such as a union or ``Annotated[...]``."""
    return isinstance(value, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute)


def is_public(name: str) -> bool:
    """Return whether a name is public and written like a class name."""
    return name[0].isupper() and not name.isupper()


def find_repeated(modules: Iterator[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Return the class names defined by several modules, with those modules."""
    found = defaultdict(list)
    for name, tree in modules:
        for each in list_classes(tree):
            found[each].append(name)
    return {name: where for name, where in found.items() if len(where) > 1}


def find_excluded(modules: Iterator[tuple[str, ast.Module]], excluded: set[str]) -> list[str]:
    """Return the modules and classes whose names contain an excluded word."""
    return [
        f"{name}: {each}"
        for name, tree in modules
        for each in (*Path(name).with_suffix("").parts, *list_classes(tree))
        if {word.lower() for word in WORD.findall(each)} & excluded and each not in EXCEPTIONS
    ]


def test_no_class_name_means_two_things() -> None:
    assert find_repeated(list_modules()) == {}


def test_names_use_the_words_of_the_glossary() -> None:
    excluded = read_excluded(GLOSSARY.read_text(encoding="utf-8"))
    assert len(excluded) > 30
    assert find_excluded(list_modules(), excluded) == []


def test_every_exception_is_still_needed() -> None:
    excluded = read_excluded(GLOSSARY.read_text(encoding="utf-8"))
    names = {part for name, tree in list_modules() for part in (*Path(name).with_suffix("").parts, *list_classes(tree))}
    assert set(EXCEPTIONS) <= names
    assert all({word.lower() for word in WORD.findall(name)} & excluded for name in EXCEPTIONS)


def test_repeated_names_are_found() -> None:
    modules = [("a.py", ast.parse("class Step: ...")), ("b.py", ast.parse("Step = int | str\nclass _Step: ..."))]
    assert find_repeated(iter(modules)) == {"Step": ["a.py", "b.py"]}


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("node/muster.py", "", ["node/muster.py: muster"]),
        ("node/registry.py", "class StageCrew: ...", ["node/registry.py: StageCrew"]),
        ("node/registry.py", "class Registry: ...", []),
    ],
)
def test_excluded_words_are_found(name: str, source: str, found: list[str]) -> None:
    assert find_excluded(iter([(name, ast.parse(source))]), {"muster", "crew"}) == found
