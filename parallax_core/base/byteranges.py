"""Sets of byte ranges of a file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

ByteRange = tuple[int, int]
"""The bytes of a file from ``start`` up to ``stop``, half open."""


class ByteRanges:
    """A set of bytes, kept as sorted ranges that neither overlap nor touch."""

    def __init__(self, ranges: Iterable[ByteRange] = ()) -> None:
        """Hold the bytes of ``ranges``, which may overlap and come in any order."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add the bytes from ``start`` up to ``stop``; an empty range adds nothing."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def find_missing(self, start: int, stop: int) -> list[ByteRange]:
        """Return the ranges of ``start`` up to ``stop`` that are not in the set, in order."""
        missing = []
        for index in range(bisect_right(self._stops, start), len(self._stops)):
            if self._starts[index] >= stop:
                break
            if start < self._starts[index]:
                missing.append((start, self._starts[index]))
            start = self._stops[index]
        return [*missing, (start, stop)] if start < stop else missing

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all bytes from ``start`` up to ``stop`` are in the set."""
        return not self.find_missing(start, stop)

    def bridge(self, gap: int) -> ByteRanges:
        """Return the set with all gaps filled that are at most ``gap`` bytes wide."""
        bridged = ByteRanges()
        end = None
        for start, stop in self:
            bridged.add(end if end is not None and start - end <= gap else start, stop)
            end = stop
        return bridged

    @property
    def total(self) -> int:
        """The number of bytes in the set."""
        return sum(self._stops) - sum(self._starts)

    def __iter__(self) -> Iterator[ByteRange]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __repr__(self) -> str:
        return f"ByteRanges({list(self)})"
