"""Keeps the latest requests of a server with the times of their parts, without their texts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from parallax_core.api import Event, RequestBegan, RequestEnded

MOST_ENDED, MOST_RUNNING = 1000, 10_000
"""The most requests that are kept; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that runs or has ended."""

    id: str
    model: str
    began: float
    """The time of its arrival at the engine, in seconds since 1970."""
    prompt_tokens: int
    ended: RequestEnded | None = None
    """None: it runs."""


class RequestRecord:
    """The latest requests of a server. It is told of events on one thread, and read on another."""

    def __init__(self, most_ended: int = MOST_ENDED, most_running: int = MOST_RUNNING) -> None:
        """Keep at most ``most_ended`` and ``most_running`` requests."""
        self._most_ended, self._most_running = most_ended, most_running
        self._running: OrderedDict[str, RecordedRequest] = OrderedDict()
        self._ended: OrderedDict[str, RecordedRequest] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, event: Event) -> None:
        """Record the beginning or the end of a request."""
        with self._lock:
            if isinstance(event, RequestBegan):
                begun = RecordedRequest(event.id, event.model, event.at, event.prompt_tokens)
                _keep(self._running, begun, self._most_running)
            elif isinstance(event, RequestEnded):
                self._running.pop(event.id, None)
                began = event.at - event.duration_s
                ended = RecordedRequest(event.id, event.model, began, event.finish.prompt_tokens, event)
                _keep(self._ended, ended, self._most_ended)

    def list(self, limit: int, model: str | None = None) -> list[RecordedRequest]:
        """Return at most ``limit`` requests, of one model or all: first running, then ended ones.

        The latest come first.
        """
        with self._lock:
            kept = [*reversed(self._running.values()), *reversed(self._ended.values())]
        return list(islice((each for each in kept if model in {None, each.model}), limit))


def _keep(kept: OrderedDict[str, RecordedRequest], request: RecordedRequest, most: int) -> None:
    kept.pop(request.id, None)
    kept[request.id] = request
    if len(kept) > most:
        kept.popitem(last=False)


RECORD = RequestRecord()
"""The record of this process: hooks are functions of a module."""
