"""A priority queue from which any member can be removed."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SPARE = 64
"""The number of stale entries allowed in the heap, in addition to the number of members."""


class PriorityQueue(Generic[T]):
    """Members by key, the least first; of equal keys, the one added first.

    Adding, removing and finding the first take logarithmic time in the number of members, on average.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, T]] = []
        self._entries: dict[T, int] = {}
        """The serial number of each member's current entry; other entries in the heap are stale."""
        self._serials = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, member: object) -> bool:
        return member in self._entries

    def add(self, key: Any, member: T) -> None:  # noqa: ANN401 -- whatever can be ordered
        """Add a member, or change the key of one."""
        serial = self._entries[member] = next(self._serials)
        heappush(self._heap, (key, serial, member))

    def discard(self, member: T) -> None:
        """Remove a member, if it is in the queue."""
        if self._entries.pop(member, None) is not None and len(self._heap) > 2 * len(self._entries) + SPARE:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def first(self) -> tuple[Any, T] | None:
        """Return the least key and its member, or None if the queue is empty."""
        while self._heap:
            key, serial, member = self._heap[0]
            if self._entries.get(member) == serial:
                return key, member
            heappop(self._heap)
        return None

    def list_first(self, count: int) -> list[T]:
        """Return the first ``count`` members, in order."""
        taken: list[tuple[Any, int, T]] = []
        while len(taken) < count and self.first() is not None:
            taken.append(heappop(self._heap))
        for entry in taken:
            heappush(self._heap, entry)
        return [member for _, _, member in taken]
