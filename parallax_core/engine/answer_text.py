"""Turns the tokens of one answer into text that ends before a stop string."""

from __future__ import annotations

from functools import partial

from parallax_core.contracts.engine import Request
from parallax_core.engine.detokenizer import Decode, Detokenizer
from parallax_core.engine.stop_strings import StopFilter


class AnswerText:
    """Decodes an answer token by token, for engines of every kind."""

    def __init__(self, decode: Decode, request: Request, shown: frozenset[int] = frozenset()) -> None:
        """Decode with ``decode`` up to a stop string of a request.

        Special tokens give no text, except those in ``shown`` and in `Request.shown_tokens`.
        """
        shown |= request.shown_tokens
        self._detokenizer = Detokenizer(partial(decode, shown=shown) if shown else decode)
        self._stop = StopFilter(request.stop, request.reasoning_marks)
        self._has_stops = bool(request.stop)
        self.decoded = ""
        """The text that the last token completed, of which the start of a stop string may be held back."""

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._stop.stopped

    @property
    def stop_string(self) -> str:
        """The stop string that has ended the text, or an empty string."""
        return self._stop.matched or ""

    def feed(self, token: int, *, is_exempt: bool = False) -> str:
        """Add a token and return the text that it completes.

        Exempt tokens begin an answer that must not end yet, see `StopFilter.feed`.
        """
        text = self.decoded = self._detokenizer.feed(token)
        return self._stop.feed(text, is_exempt=is_exempt) if self._has_stops else text

    def finish(self) -> str:
        """Return the text still held back: the answer has ended."""
        text = self._stop.feed(self._detokenizer.finish())
        return text if self._stop.stopped else text + self._stop.finish()
