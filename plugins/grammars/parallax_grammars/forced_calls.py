"""Reads answers that have to be calls: JSON, whatever the format of the model; see `AskedAnswer`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallax_core.api import Content, JsonScan, Parser, Piece, ToolCall

HEAD = re.compile(r'[\s,\[\]}]*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
"""The text between the arguments of two calls."""


class ForcedCallParser:
    """Reads such an answer; the model's own parser finds the reasoning before it."""

    def __init__(self, inner: Parser, named: str) -> None:
        """Read calls of the tool ``named``, or of any if it is empty, from the content that ``inner`` finds."""
        self._inner = inner
        self._named = named
        self._text = ""
        self._num_calls = 0
        self._scan: JsonScan | None = None

    def feed(self, text: str) -> Sequence[Piece]:
        """See `Parser.feed`."""
        return self._read(self._inner.feed(text))

    def finish(self) -> Sequence[Piece]:
        """See `Parser.finish`."""
        pieces, rest = self._read(self._inner.finish()), self._text
        self._text = ""
        is_call = self._num_calls > 0 or not rest.strip()
        return pieces if is_call else [*pieces, Content(rest)]

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                self._text += piece.text
                while self._advance(found):
                    pass
            else:
                found.append(piece)
        return found

    def _advance(self, found: list[Piece]) -> bool:
        """Read the beginning of a call, or more of its arguments; return whether there may be more to read."""
        if self._scan is None:
            return self._open(found)
        stop = self._scan.find_end(self._text, 0)
        arguments, self._text = self._text[:stop], "" if stop is None else self._text[stop:]
        if arguments:
            found.append(ToolCall(self._num_calls - 1, arguments=arguments))
        if stop is not None:
            self._scan = None
        return stop is not None

    def _open(self, found: list[Piece]) -> bool:
        head = HEAD.match(self._text)
        start = self._text.find("{") if self._named else head.end() if head else -1
        if start < 0 or (self._named and self._num_calls):
            return False
        found.append(ToolCall(self._num_calls, self._named or (head[1] if head else "")))
        self._text, self._scan = self._text[start:], JsonScan()
        self._num_calls += 1
        return True
