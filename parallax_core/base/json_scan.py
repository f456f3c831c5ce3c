"""Finds the end of a JSON value that arrives in pieces."""

from __future__ import annotations

import re

OUTSIDE = re.compile(r'["{}\[\]]')
INSIDE = re.compile(r'["\\]')


class JsonScan:
    """Looks for the end of one object, list or string; it balances brackets, and does not check anything else."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = False
        self._is_escaped = False

    @property
    def is_in_string(self) -> bool:
        """Whether the text so far ends within a string of an object or a list."""
        return self._is_string and self._depth > 0

    def find_end(self, text: str, start: int) -> int | None:
        """Return the position after the value, or None if it does not end in ``text``; the rest of it comes next."""
        at = start
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (INSIDE if self._is_string else OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            self._note(found[0])
            if not self._depth and not self._is_string:
                return at
        return None

    def _note(self, letter: str) -> None:
        if letter == "\\":
            self._is_escaped = True
        elif letter == '"':
            self._is_string = not self._is_string
        else:
            self._depth += 1 if letter in "{[" else -1
