"""Turns token ids into text incrementally."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallax_core.base.errors import BackendFailed
from parallax_core.base.faults import ENDINGS, describe_error

Decode = Callable[..., str]
"""Turns token ids, its only positional argument, into text. Special tokens give no text, except those in the keyword
argument ``shown``, a set of ids, which is given only if it is not empty."""

HALF = "\N{REPLACEMENT CHARACTER}"
"""The character that a tokenizer's decoder gives for an incomplete character."""

MAX_HALF_TOKENS = 8
"""The most tokens one character spans; after more, the bytes are not UTF-8 and are shown as they are."""


class Detokenizer:
    """Decodes one sequence incrementally and never returns half a character.

    Decoding is not concatenative (a leading space may depend on the previous token), so each piece is decoded together
    with the piece before it, as in text-generation-inference and vLLM: the new text is what this adds to that piece.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._shown: list[int] = []
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """Add the next token and return the text it completes, which may be empty.

        Raises:
            BackendFailed: if the model's decoder fails on it, in whatever way; so does `finish`.
        """
        self._pending.append(token)
        text = self._new_text()
        unfinished = not text or text.endswith(HALF)
        return "" if unfinished and len(self._pending) < MAX_HALF_TOKENS else self._show(text)

    def finish(self) -> str:
        """Return the text still held back; an incomplete character at the end becomes a replacement character."""
        return self._show(self._new_text())

    def _new_text(self) -> str:
        before = self._read(self._shown)
        return self._read(self._shown + self._pending)[len(before) :]

    def _read(self, tokens: Sequence[int]) -> str:
        try:
            return self._decode(tokens)
        except ENDINGS:
            raise
        except BaseException as error:  # a panic of the library, too
            message = f"the model's tokenizer fails on this answer: {describe_error(error)}"
            raise BackendFailed(message) from error

    def _show(self, text: str) -> str:
        self._shown, self._pending = self._pending, []
        return text
