"""Tells the meters of plugins of requests and errors; one that fails affects no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from parallax_core.contracts.engine import Delta
from parallax_core.contracts.meter import RequestMeter, ServerMeter
from parallax_core.server.error_body import KINDS, UNFORESEEN

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Meters:
    """The meters of one server."""

    def __init__(self) -> None:
        self.all: list[ServerMeter] = []

    def count_error(self, status: int) -> None:
        """Count an error that a client gets, as a response or at the end of a stream."""
        for meter in [*self.all]:
            self.call(meter, meter.count_error, KINDS.get(status, UNFORESEEN))

    def begin(self, arrived: float, parent: str, on_over: Callable[[], None]) -> RequestMeters:
        """Begin to measure a request.

        Args:
            arrived: the time of its arrival by `time.monotonic`.
            parent: its ``traceparent`` header.
            on_over: called once, when the request ends or is abandoned.
        """
        begun = [(meter, self.call(meter, meter.begin, arrived, parent)) for meter in [*self.all]]
        return RequestMeters(self, on_over, [(meter, request) for meter, request in begun if request is not None])

    def call(self, meter: ServerMeter, function: Callable[..., T], *args: Any) -> T | None:  # noqa: ANN401
        """Return what a function of a meter returns; None if it raises: it measures no more then."""
        if meter not in self.all:
            return None
        try:
            return function(*args)
        except Exception:  # a plugin may raise anything, and no answer fails for it
            self.all.remove(meter)
            logger.exception("%s failed, and measures no more", type(meter).__name__)
            return None


@dataclass(slots=True)
class RequestMeters:
    """The meters of one request."""

    meters: Meters
    on_over: Callable[[], None]
    begun: list[tuple[ServerMeter, RequestMeter]]
    is_over: bool = False

    def note(self, delta: Delta) -> None:
        """Record a delta on its arrival."""
        for meter, request in self.begun:
            self.meters.call(meter, request.note, delta)
        if delta.finish is not None:
            self._end()

    def abandon(self) -> None:
        """Record that the client abandoned the request, unless it has ended."""
        if not self.is_over:
            self._end()
            for meter, request in self.begun:
                self.meters.call(meter, request.abandon)

    def _end(self) -> None:
        self.is_over = True
        self.on_over()
