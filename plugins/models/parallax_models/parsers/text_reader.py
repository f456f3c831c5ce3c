"""Reads a text that arrives in pieces, as if it were there already."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from parallax_core.api import JsonScan
from parallax_models.parsers.marks import Marks

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads text and returns a result; it yields whenever it needs more text."""
Sink = Callable[[str], object]
"""Takes text as it is read."""

SPACE = re.compile(r"\s*")
SCALAR = re.compile(r"[^\s,\[\]{}\"]*")
MAX_NAME = 256
"""The longest name of a tool, in characters."""


def drop(text: str) -> None:
    """Take text that is of no use."""
    del text


class TextReader:
    """A text with a position. Every character is looked at a bounded number of times."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._has_ended = False
        self._record: list[str] | None = None

    def add(self, text: str) -> None:
        """Add text at the end."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Note that no more text comes."""
        self._has_ended = True

    def begin_record(self, text: str) -> None:
        """Keep what is read from here on, after ``text``, in case it turns out to be something else."""
        self._record = [text]

    def end_record(self) -> str:
        """Return what was read since `begin_record`."""
        text, self._record = "".join(self._record or ()), None
        return text

    def forget_record(self) -> None:
        """Keep nothing: what was read is certain."""
        self._record = None

    def peek(self) -> Reading[str]:
        """Return the next character without reading it; empty at the end."""
        while self._at == len(self._text) and not self._has_ended:
            yield
        return self._text[self._at : self._at + 1]

    def skip_space(self) -> Reading[str]:
        """Read white space; return the character after it, unread."""
        while True:
            self._take(_match(SPACE, self._text, self._at).end(), drop)
            if self._at < len(self._text) or self._has_ended:
                return self._text[self._at : self._at + 1]
            yield

    def expect(self, text: str) -> Reading[bool]:
        """Read ``text`` if it comes next, and return whether it does."""
        while True:
            if self._text.startswith(text, self._at):
                self._take(self._at + len(text), drop)
                return True
            if self._has_ended or not text.startswith(self._text[self._at :]):
                return False
            yield

    def expect_after_space(self, text: str) -> Reading[bool]:
        """Read ``text`` if it comes next, after at most 64 characters of white space; else read nothing."""
        while True:
            start = _match(SPACE, self._text, self._at).end()
            if self._text.startswith(text, start):
                self._take(start + len(text), drop)
                return True
            is_long = start - self._at > 64  # noqa: PLR2004 -- as the docstring says
            if self._has_ended or is_long or not text.startswith(self._text[start:]):
                return False
            yield

    def pass_until(self, marks: Marks, sink: Sink) -> Reading[str]:
        """Pass the text before the first mark to ``sink``; return the mark, read, or an empty string at the end."""
        while True:
            if found := marks.find(self._text, self._at):
                self._take(found.start(), sink)
                self._take(found.end(), drop)
                return found[0]
            stop = len(self._text) if self._has_ended else marks.find_half(self._text, self._at)
            self._take(stop, sink)
            if self._has_ended:
                return ""
            yield

    def read_match(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read the longest text of `MAX_NAME` characters at most that ``pattern``, a repeated class, matches."""
        while True:
            stop = min(_match(pattern, self._text, self._at).end(), self._at + MAX_NAME)
            if stop < len(self._text) or self._has_ended or stop - self._at == MAX_NAME:
                text = self._text[self._at : stop]
                self._take(stop, drop)
                return text
            yield

    def pass_json(self, sink: Sink) -> Reading[bool]:
        """Pass a JSON value to ``sink``; return whether it is whole. The next character is known."""
        if self._text[self._at : self._at + 1] not in {"{", "[", '"'}:
            text = yield from self.read_match(SCALAR)
            sink(text)
            return bool(text)
        scan = JsonScan()
        while True:
            stop = scan.find_end(self._text, self._at)
            self._take(len(self._text) if stop is None else stop, sink)
            if stop is not None:
                return True
            if self._has_ended:
                return False
            yield

    def _take(self, stop: int, sink: Sink) -> None:
        """Read up to ``stop``."""
        if stop > self._at:
            text = self._text[self._at : stop]
            self._at = stop
            if self._record is not None:
                self._record.append(text)
            sink(text)


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Return the match of a pattern that also matches nothing."""
    found = pattern.match(text, at)
    assert found is not None
    return found
