"""Reads what a module is about from its source, without importing it."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path

DOCSTRING = re.compile(r'(?:\s|#[^\n]*\n)*[rR]?(?P<quote>"""|\'\'\'|"|\')\\?\s*(?P<line>.+?)\s*(?:\n|(?P=quote))')
MOST_CHARACTERS = 4096
"""How much of a module is read: its docstring is at the beginning."""


def read_summary(module: str, owner: Distribution | None = None) -> str:
    """Return the first line of a module's docstring, of a distribution; empty without a docstring or source."""
    path = find_source(module, owner)
    if path is None:
        return ""
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
        if found := DOCSTRING.match(file.read(MOST_CHARACTERS)):
            return found["line"]
    return ""


def find_source(module: str, owner: Distribution | None = None) -> Path | None:
    """Return the file of a module; neither it nor its packages are imported. None: there is no such file."""
    first, *rest = module.split(".")
    if owner and (path := Path(str(owner.locate_file(f"{'/'.join([first, *rest])}.py")))).is_file():
        return path  # no need to look where else it might be
    with suppress(ImportError, ValueError):
        spec, name = find_spec(first), first
        for part in rest:
            name = f"{name}.{part}"
            places = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(name, places) if places else None
        return Path(spec.origin) if spec and spec.has_location and spec.origin else None
    return None
