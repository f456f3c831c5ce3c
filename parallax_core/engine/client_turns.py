"""A queue that serves clients in turn, however much each of them asks for."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ClientTurns(Generic[T]):
    """Items of clients; each client has its turn, and its items come in order."""

    def __init__(self) -> None:
        self._queues: OrderedDict[bytes, deque[T]] = OrderedDict()
        """By client, the next one first."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, client: bytes, item: T) -> None:
        """Add an item behind those of its client."""
        self._queues.setdefault(client, deque()).append(item)

    def put_back(self, client: bytes, item: T) -> None:
        """Add an item that was taken, to be the next of all."""
        self._queues.setdefault(client, deque()).appendleft(item)
        self._queues.move_to_end(client, last=False)

    def take(self) -> T:
        """Return the next item.

        Raises:
            KeyError: if there is none.
        """
        client, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[client] = queue
        return item
