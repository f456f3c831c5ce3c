"""Two small real parsers, which show that the kit for parsers works."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallax_core.api import Content, Piece, Reasoning, ToolCall


def count_half(text: str, mark: str) -> int:
    """Return the number of characters at the end of ``text`` that could begin ``mark``."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


class ThinkParser:
    """Text between ``<think>`` and ``</think>`` is reasoning."""

    def __init__(self) -> None:
        self._held = ""
        self._thinks = False

    def feed(self, text: str) -> Sequence[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while (mark := self._mark()) in self._held:
            before, _, self._held = self._held.partition(mark)
            pieces += self._piece(before)
            self._thinks = not self._thinks
        size = len(self._held) - count_half(self._held, self._mark())
        pieces += self._piece(self._held[:size])
        self._held = self._held[size:]
        return pieces

    def finish(self) -> Sequence[Piece]:
        held, self._held = self._held, ""
        return self._piece(held)

    def _mark(self) -> str:
        return "</think>" if self._thinks else "<think>"

    def _piece(self, text: str) -> list[Piece]:
        return [Reasoning(text) if self._thinks else Content(text)] if text else []


BEGIN, END = "<tool_call>", "</tool_call>"
HEAD = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')
TAIL = re.compile(r"\s*\}\s*</tool_call>")


class CallParser:
    """Calls are ``<tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>``; arguments are streamed."""

    def __init__(self) -> None:
        self._held = ""
        self._state = self._read_text
        self._index = -1
        self._depth, self._is_string, self._is_escaped = 0, False, False

    def feed(self, text: str) -> Sequence[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while (found := self._state()) is not None:
            pieces += found
        return pieces

    def finish(self) -> Sequence[Piece]:
        held, self._held = self._held, ""
        return [Content(held)] if held and self._state != self._read_tail else []

    def _read_text(self) -> list[Piece] | None:
        before, mark, rest = self._held.partition(BEGIN)
        if mark:
            self._state, self._held = self._read_head, mark + rest
            return [Content(before)] if before else []
        size = len(self._held) - count_half(self._held, BEGIN)
        text, self._held = self._held[:size], self._held[size:]
        return [Content(text)] if text else None

    def _read_head(self) -> list[Piece] | None:
        """Wait for the name; a call that ends without one is plain text."""
        if head := HEAD.match(self._held):
            self._held = self._held[head.end() :]
            self._index += 1
            self._state = self._read_arguments
            return self.begin_call(head[1])
        before, mark, self._held = self._held.partition(END)
        if mark:
            self._state = self._read_text
            return [Content(before + mark)]
        self._held = before
        return None

    def begin_call(self, name: str) -> list[Piece]:
        return [ToolCall(self._index, name)]

    def _read_arguments(self) -> list[Piece] | None:
        size = 0
        for size, letter in enumerate(self._held, 1):  # noqa: B007 - the last value is used
            self._note(letter)
            if not self._depth:
                self._state = self._read_tail
                break
        text, self._held = self._held[:size], self._held[size:]
        return [ToolCall(self._index, arguments=text)] if text else None

    def _note(self, letter: str) -> None:
        if self._is_string:
            self._is_string = self._is_escaped or letter != '"'
            self._is_escaped = letter == "\\" and not self._is_escaped
        else:
            self._is_string = letter == '"'
            self._depth += (letter in "{[") - (letter in "}]")

    def _read_tail(self) -> list[Piece] | None:
        if tail := TAIL.match(self._held):
            self._state, self._held = self._read_text, self._held[tail.end() :]
            return []
        return None
