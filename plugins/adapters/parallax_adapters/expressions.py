r"""Regular expressions that match in time proportional to a text, for the patterns of PEFT's settings.

Whoever writes an adapter writes them, and those of Python take exponential time at will. Read are letters, ``.``,
``\d`` and the like, ``[...]``, groups, ``|``, and the repetitions ``*``, ``+`` and ``?``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from parallax_core.api import Unsupported

MOST_LETTERS = 200
"""The most letters of an expression."""
MOST_SETS = 4096
"""Sets of states that are kept for the next text."""
CLASSES = "dDwWsS"
Accepts = Callable[[str], object]
"""Whether a letter may stand here."""
States = frozenset[int]


class Expression:
    """A regular expression, as an automaton (Thompson, 1968) that follows all its ways at once.

    Args:
        text: the expression; all of a text has to match.

    Raises:
        Unsupported: if it has more than is read here.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MOST_LETTERS:
            raise Unsupported(f"the expression {text[:60]!r} has {len(text)} letters; at most {MOST_LETTERS} are read")
        self._text, self._place = text, 0
        self._reads: list[list[tuple[Accepts, int]]] = []
        """By state, what may be read, and the state after it."""
        self._skips: list[list[int]] = []
        """By state, those that are reached without a letter."""
        start, self._end = self._read_branches()
        if self._place < len(text):
            raise self._refuse()
        self._start = self._close({start})
        self._known: dict[tuple[States, str], States] = {}

    def matches(self, text: str) -> bool:
        """Return whether all of a text matches."""
        states = self._start
        for letter in text:
            if (found := self._known.get((states, letter))) is None:
                reads = (read for each in states for read in self._reads[each])
                found = self._close({after for accepts, after in reads if accepts(letter)})
                if len(self._known) < MOST_SETS:
                    self._known[states, letter] = found
            states = found
        return self._end in states

    def _close(self, states: set[int]) -> States:
        waiting = list(states)
        while waiting:
            added = set(self._skips[waiting.pop()]) - states
            states |= added
            waiting.extend(added)
        return frozenset(states)

    def _read_branches(self) -> tuple[int, int]:
        start, end = self._add(), self._add()
        while True:
            first = last = self._add()
            self._skips[start].append(first)
            while self._peek() not in ("", "|", ")"):
                last = self._repeat(last, *self._read_atom())
            self._skips[last].append(end)
            if not self._take("|"):
                return start, end

    def _repeat(self, before: int, first: int, last: int) -> int:
        """Return the state after an atom that follows a state, as often as the letter behind it says."""
        after, sign = self._add(), self._peek()
        self._skips[before].append(first)
        self._skips[last].append(after)
        if sign in ("*", "+", "?") and self._take(sign):
            self._take("?")  # as few as possible: the same texts match
            if sign != "+":
                self._skips[before].append(after)
            if sign != "?":
                self._skips[last].append(first)
        return after

    def _read_atom(self) -> tuple[int, int]:
        if self._take("("):
            if self._take("?") and not self._take(":"):
                raise self._refuse()
            found = self._read_branches()
            if not self._take(")"):
                raise self._refuse()
            return found
        start, end = self._add(), self._add()
        self._reads[start].append((self._read_letter(), end))
        return start, end

    def _read_letter(self) -> Accepts:
        letter = self._peek()
        if letter in tuple("*+?{}^$"):
            raise self._refuse()
        self._place += 1
        if letter == ".":
            return lambda _: True
        if letter == "[":
            return self._read_class()
        if letter != "\\":
            return letter.__eq__
        escaped = self._peek()
        self._place += 1
        if escaped in tuple(CLASSES):
            return re.compile(f"\\{escaped}").match
        if not escaped or escaped.isalnum():
            raise self._refuse()
        return escaped.__eq__

    def _read_class(self) -> Accepts:
        found = re.compile(r"\^?\]?(?:[^\]\\]|\\.)*\]").match(self._text, self._place)
        try:
            accepts = re.compile(f"[{found[0] if found else ''}").match  # of one letter, which takes no time
        except re.error as error:
            raise self._refuse() from error
        assert found is not None, "it compiles"
        self._place = found.end()
        return accepts

    def _add(self) -> int:
        self._reads.append([])
        self._skips.append([])
        return len(self._reads) - 1

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _take(self, letter: str) -> bool:
        self._place += (is_next := self._peek() == letter)
        return is_next

    def _refuse(self) -> Unsupported:
        message = f"the expression {self._text[:60]!r} is not understood at its letter {self._place + 1}"
        return Unsupported(message, "write out the modules")
