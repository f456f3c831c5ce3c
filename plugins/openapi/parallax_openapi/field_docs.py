"""Reads the docstrings of fields, which become their descriptions in the API's description.

Pydantic can read them itself as each class is made, which is a good part of what a server and its processes take to
start, and only the description has a use for them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
from pydantic import BaseModel

DocumentedClass = BaseModel | msgspec.Struct
Docs = Mapping[str, str | None]
"""The docstring of each annotated field of a class, or None."""


def read_field_docs(model: type[DocumentedClass]) -> dict[str, str]:
    """Return the docstrings of a class's fields, by their names in JSON.

    Each is that of the last class that annotates the field.
    """
    found: dict[str, str | None] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, DocumentedClass):
            found |= _read_module(owner.__module__).get(owner.__qualname__, {})
    if issubclass(model, BaseModel):
        names = {name: field.alias or name for name, field in model.model_fields.items()}
    else:
        names = {name: name for name in model.__struct_fields__}
    return {names[name]: text for name, text in found.items() if text and name in names}


def add_field_docs(shapes: Mapping[str, dict[str, Any]], models: Iterable[type[DocumentedClass]]) -> None:
    """Add the docstrings of fields to the schemas of classes, by the name of the class, where a field lacks one."""
    for model in models:
        properties = shapes.get(model.__name__, {}).get("properties", {})
        for name, text in read_field_docs(model).items():
            if name in properties:
                properties[name].setdefault("description", text)


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
