"""Finds the first of several marks in a text that arrives in pieces."""

from __future__ import annotations

import re


class Marks:
    """Strings to look for. No mark may contain another one, except at its end."""

    def __init__(self, *marks: str) -> None:
        self._marks = marks
        self._first = frozenset(mark[0] for mark in marks)
        self._longest = max(map(len, marks), default=0)
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """Return the first mark in ``text`` from ``start`` on."""
        return self._pattern.search(text, start)

    def find_half(self, text: str, start: int) -> int:
        """Return the position in ``text``, from ``start`` on, at which an incomplete mark begins, or its length."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at] in self._first and any(mark.startswith(text[at:]) for mark in self._marks):
                return at
        return len(text)
