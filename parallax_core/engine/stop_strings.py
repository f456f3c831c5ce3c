"""Ends the text before the first stop string, whatever the token boundaries."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.engine.answer_start import AnswerStart, count_begun


class StopFilter:
    """Passes text on until a stop string appears; holds back text that may be the start of one.

    A stop string counts in the answer only, not in the reasoning before it, which ``marks`` enclose; see `AnswerStart`.
    """

    def __init__(self, stops: Sequence[str], marks: tuple[str, str] | None = None) -> None:
        self._stops = tuple(stops)
        self._start = AnswerStart(marks)
        self._held = ""
        self._num_exempt = 0
        self.matched: str | None = None
        """The stop string that ended the text; None: none so far."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.matched is not None

    def feed(self, text: str, *, is_exempt: bool = False) -> str:
        """Add text and return the part that certainly comes before any stop string.

        Exempt text is the beginning of an answer that must not end yet: a stop string must end after it to count.
        """
        if not self._stops:
            return text
        self._held += text
        if is_exempt:
            self._num_exempt = len(self._held)
        before = self._release(self._start.pass_reasoning(self._held))
        return before + self._pass_answer() if self._start.is_passed else before

    def finish(self) -> str:
        """Return the text still held back: no more follows to complete a stop string, or a mark."""
        self._start.close()
        text = self._pass_answer() if self._start.is_passed else ""
        return text if self.stopped else text + self._release(len(self._held))

    def _pass_answer(self) -> str:
        places = {stop: self._held.find(stop, self._find_start(stop)) for stop in self._stops}
        found = {stop: place for stop, place in places.items() if place >= 0}
        if found:
            self.matched = min(found, key=found.__getitem__)
            return self._release(found[self.matched], drop_rest=True)
        undecided = max((count_begun(self._held, stop) for stop in self._stops), default=0)
        return self._release(len(self._held) - undecided)

    def _find_start(self, stop: str) -> int:
        """Return the first position from which a stop string ends after the exempt text."""
        return max(0, self._num_exempt - len(stop) + 1)

    def _release(self, size: int, *, drop_rest: bool = False) -> str:
        text, self._held = self._held[:size], "" if drop_rest else self._held[size:]
        self._num_exempt = max(0, self._num_exempt - size)
        return text
