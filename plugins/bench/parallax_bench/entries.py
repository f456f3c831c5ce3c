"""Reads the entries of files with a JSON list, or with a JSON value on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parallax_core.api import ParallaxError

Entry = tuple[str, Any]
"""Where an entry is, for errors, and its content."""


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ParallaxError: giving the reason why it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ParallaxError(
            f"the dataset cannot be read: {error}", "give --dataset KIND:PATH a readable file"
        ) from error


def list_lines(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line of a text that is not empty, with where it is."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"line {number} of {path}", line


def list_entries(text: str, path: Path) -> Iterator[Entry]:
    """Yield the entries of a JSON list, or of lines of JSON.

    Raises:
        ParallaxError: naming the part that is not JSON.
    """
    if text.lstrip().startswith("["):
        for number, entry in enumerate(parse(text, str(path)), 1):
            yield f"entry {number} of {path}", entry
        return
    for where, line in list_lines(text, path):
        yield where, parse(line, where)


def parse(text: str, where: str) -> Any:  # noqa: ANN401 -- whatever it holds
    """Return a JSON value.

    Raises:
        ParallaxError: if it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "write a JSON list, or one JSON object per line"
        raise ParallaxError(f"{where} is not JSON: {error}", hint) from error
