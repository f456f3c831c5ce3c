"""Finds where an answer begins after the reasoning of a model that marks it."""

from __future__ import annotations

from typing import Literal


class AnswerStart:
    """Tells the text of the reasoning, with the white space after it, from the text of the answer.

    The reasoning begins with the first mark, which white space may precede, and ends with the second. If the first mark
    is empty, the prompt has opened the reasoning. Without marks, everything is the answer.
    """

    def __init__(self, marks: tuple[str, str] | None) -> None:
        self._begin, self._end = marks or ("", "")
        self._state: Literal["unknown", "reasoning", "space", "answer"] = "unknown" if marks else "answer"

    @property
    def is_passed(self) -> bool:
        """Whether the rest of the text is the answer."""
        return self._state == "answer"

    def pass_reasoning(self, text: str) -> int:
        """Return how many leading characters of ``text`` certainly come before the answer.

        ``text`` follows what was certain at the last call: the next call repeats the rest, and adds to it.
        """
        place = 0
        if self._state == "unknown":
            place = self._read_begin(text)
        if self._state == "reasoning":
            place = self._read_reasoning(text, place)
        if self._state == "space":
            place = len(text) - len(text[place:].lstrip())
            self._state = "space" if place == len(text) else "answer"
        return place

    def close(self) -> None:
        """Note that no more text follows to complete a mark."""
        if self._state == "unknown":
            self._state = "answer"

    def _read_begin(self, text: str) -> int:
        shown = text.lstrip()
        if shown.startswith(self._begin):
            self._state = "reasoning"
            return len(text) - len(shown) + len(self._begin)
        if not self._begin.startswith(shown):
            self._state = "answer"
        return 0

    def _read_reasoning(self, text: str, begin: int) -> int:
        place = text.find(self._end, begin)
        if place >= 0:
            self._state = "space"
            return place + len(self._end)
        return len(text) - count_begun(text[begin:], self._end)


def count_begun(text: str, mark: str) -> int:
    """Return how many characters at the end of ``text`` may be the start of ``mark``, less than the whole of it."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
