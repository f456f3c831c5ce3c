"""Delivers events to observer plugins; a slow or failing observer affects nothing else."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable

from parallax_core.contracts.event import Event
from parallax_core.plugins.discovery import PluginRecord

CAPACITY = 1000
"""The largest number of events queued for one plugin; more are dropped."""

logger = logging.getLogger(__name__)

Observe = Callable[[Event], object]


class EventSubscriber:
    """Calls one observer plugin, on its own thread."""

    def __init__(self, name: str, observe: Observe, capacity: int = CAPACITY) -> None:
        self._name = name
        self._observe = observe
        self._events: queue.Queue[Event | None] = queue.Queue(capacity)
        self._is_closing = False
        self.num_dropped = 0
        self.num_failed = 0
        self._num_put = 0
        self._num_taken = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"observer {name}")
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event, or drop it if the queue is full; never blocks."""
        try:
            self._events.put_nowait(event)
            self._num_put += 1
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                logger.warning("plugin %r watches too slowly: events are dropped", self._name)

    def close(self) -> None:
        """Accept no more events; queued ones are still delivered."""
        self._is_closing = True
        try:
            self._events.put_nowait(None)
        except queue.Full:  # the thread checks the flag, too
            return

    def join(self, limit_s: float) -> None:
        """Wait at most ``limit_s`` seconds for the thread to end, and log the number of lost events."""
        self._thread.join(max(0.0, limit_s))
        lost = self.num_dropped + self._num_put - self._num_taken
        if lost or self.num_failed:
            logger.warning("plugin %r missed %d events, and raised on %d", self._name, lost, self.num_failed)

    def _run(self) -> None:
        while not (self._is_closing and self._events.empty()):
            event = self._events.get()
            if event is None:
                return
            self._num_taken += 1
            try:
                self._observe(event)
            except (Exception, SystemExit):
                self.num_failed += 1
                if self.num_failed == 1:
                    logger.exception("plugin %r raised while it watched; further times are counted", self._name)


class EventBus:
    """Sends each event to all observer plugins."""

    def __init__(self, found: Iterable[tuple[PluginRecord, Observe]], capacity: int = CAPACITY) -> None:
        self._subscribers = [EventSubscriber(record.name, observe, capacity) for record, observe in found]

    def __len__(self) -> int:
        return len(self._subscribers)

    def tell(self, event: Event) -> None:
        """Queue an event for each plugin; never blocks."""
        for subscriber in self._subscribers:
            subscriber.put(event)

    def close(self, limit_s: float) -> None:
        """Deliver the queued events, for at most ``limit_s`` seconds in total, and end the threads."""
        deadline = time.monotonic() + limit_s
        for subscriber in self._subscribers:
            subscriber.close()
        for subscriber in self._subscribers:
            subscriber.join(deadline - time.monotonic())
