"""Reads the input of a custom tool from the arguments of a call, as they arrive."""

from __future__ import annotations

import json
import re

BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
"""The arguments before the input."""
HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
"""The first escape sequence of a pair of surrogates."""
SAFE = re.compile(
    rf'(?:[^"\\]|{HIGH}\\u[0-9a-fA-F]{{4}}|{HIGH}(?=[^\\]|\\[^u])|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}|\\[^u])*'
)
"""The part of a JSON string that can be decoded alone: no escape sequence is cut, nor a pair of surrogates."""
MOST_HEAD = 200
"""The most characters before the input; arguments that begin otherwise are the input themselves."""


class CustomInput:
    """Decodes ``{"input": "TEXT"}`` to TEXT; other arguments are the input as they are."""

    def __init__(self) -> None:
        self._rest = ""
        self._state = "head"

    def feed(self, arguments: str) -> str:
        """Add a piece of the arguments and return the piece of the input that is certain by now."""
        self._rest += arguments
        if self._state == "head":
            self._open()
        return self._read() if self._state == "text" else self._take() if self._state == "raw" else ""

    def finish(self) -> str:
        """Return the rest of the input, at the end of the arguments."""
        if self._state == "head":
            self._state = "raw"
        return self._take() if self._state == "raw" else ""

    def _open(self) -> None:
        if found := BEGINNING.match(self._rest):
            self._state, self._rest = "text", self._rest[found.end() :]
        elif len(self._rest) > MOST_HEAD or not _may_begin(self._rest):
            self._state = "raw"

    def _read(self) -> str:
        found = SAFE.match(self._rest)
        end = found.end() if found else 0
        text, self._rest = self._rest[:end], self._rest[end:]
        if self._rest.startswith('"'):
            self._state = "ended"
        try:
            decoded = json.loads(f'"{text}"', strict=False)
        except ValueError:  # an escape sequence that JSON does not have
            decoded = text
        return str(decoded).encode(errors="replace").decode()

    def _take(self) -> str:
        text, self._rest = self._rest, ""
        return text


def _may_begin(text: str) -> bool:
    """Return whether a text may be the beginning of `BEGINNING`."""
    squeezed = re.sub(r"\s", "", text)
    return '{"input":"'.startswith(squeezed)
