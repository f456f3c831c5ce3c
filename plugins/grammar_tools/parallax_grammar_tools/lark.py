"""Writes parts of grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import re

SPECIAL = re.compile(r"\\.|/|\n", re.DOTALL)
"""Characters that a regular expression in Lark must escape, and existing escapes."""


def write_pattern(pattern: str) -> str:
    """Return a regular expression as Lark writes it."""
    return f"/(?:{SPECIAL.sub(_escape, pattern)})/"


def _escape(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(found[0], found[0])
