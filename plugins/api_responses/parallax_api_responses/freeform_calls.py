"""Reads an answer that is the input of a tool as a call of that tool."""

from __future__ import annotations

import json
from collections.abc import Sequence

from parallax_core.api import Content, Parser, Piece, ToolCall

OPENING, CLOSING = '{"input":"', '"}'
"""The arguments of the call, before and after the input."""


class FreeformCallParser:
    """Makes the content of an answer the argument ``input`` of one call; the model's own parser finds the reasoning."""

    def __init__(self, inner: Parser, name: str) -> None:
        """Read a call of the tool ``name`` from the content that ``inner`` finds."""
        self._inner = inner
        self._name = name
        self._is_open = False

    def feed(self, text: str) -> Sequence[Piece]:
        """See `Parser.feed`."""
        return self._read(self._inner.feed(text))

    def finish(self) -> Sequence[Piece]:
        """See `Parser.finish`."""
        pieces = self._read(self._inner.finish())
        if self._is_open:
            pieces.append(ToolCall(0, arguments=CLOSING))
            self._is_open = False
        return pieces

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if not isinstance(piece, Content):
                found.append(piece)
                continue
            if not self._is_open:
                found += [ToolCall(0, self._name), ToolCall(0, arguments=OPENING)]
                self._is_open = True
            found.append(ToolCall(0, arguments=json.dumps(piece.text)[1:-1]))
        return found
