"""Reads the docstrings of fields, which become their descriptions in the API's description.

Pydantic can read them itself as each class is made, which is a good part of what a server and its processes take to
start, and only the description has a use for them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

Docs = Mapping[str, str | None]
"""The docstring of each annotated field of a class, or None."""


def read_field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, by name: each from the last class that annotates the field."""
    found: dict[str, str | None] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel):
            found |= _read_module(owner.__module__).get(owner.__qualname__, {})
    return {name: text for name, text in found.items() if text and name in model.model_fields}


def add_field_docs(shapes: Mapping[str, dict[str, Any]], *bases: type[BaseModel]) -> None:
    """Add the docstrings of fields to schemas, by the name of the class, where a field has no description.

    Args:
        shapes: the schemas.
        bases: the classes whose subclasses they may describe.
    """
    for model in (each for base in bases for each in _list_classes(base)):
        properties = shapes.get(model.__name__, {}).get("properties", {})
        for name, text in read_field_docs(model).items():
            if (shape := properties.get(model.model_fields[name].alias or name)) is not None:
                shape.setdefault("description", text)


def _list_classes(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield base
    for each in base.__subclasses__():
        yield from _list_classes(each)


@cache
def _read_module(name: str) -> Mapping[str, Docs]:
    """Return the docstrings of fields of each class of a module; nothing if it has no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: dict(_read_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _read_class(node: ast.ClassDef) -> Iterator[tuple[str, str | None]]:
    for each, after in pairwise([*node.body, ast.Pass()]):
        match each, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                yield name, None
