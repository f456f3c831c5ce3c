"""From token ids to text, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Turns token ids into text; special tokens have none."""

HALF = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer's decoder puts where the bytes of a character are not complete."""

MAX_HALF_TOKENS = 8
"""No character is spread over more tokens than this; a longer wait means the bytes are simply not UTF-8."""


class Detokenizer:
    """Decodes one sequence incrementally, never showing half a character.

    Decoders are not concatenative (a leading space may depend on the token before), so each piece is decoded behind
    the piece before it, as text-generation-inference and vLLM do: the new text is what the longer decode has more.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._shown: list[int] = []
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """Take the next token and return the text it completes, possibly none."""
        self._pending.append(token)
        text = self._new_text()
        unfinished = not text or text.endswith(HALF)
        return "" if unfinished and len(self._pending) < MAX_HALF_TOKENS else self._show(text)

    def finish(self) -> str:
        """Return the text still held back; half a character at the very end shows as a replacement character."""
        return self._show(self._new_text())

    def _new_text(self) -> str:
        before = self._decode(self._shown)
        return self._decode(self._shown + self._pending)[len(before) :]

    def _show(self, text: str) -> str:
        self._shown, self._pending = self._pending, []
        return text
