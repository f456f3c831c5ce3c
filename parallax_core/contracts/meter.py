"""Meters of a server. They are called on the event loop of all answers: a call takes microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from parallax_core.contracts.engine import Delta


class RequestMeter(Protocol):
    """Measures one request."""

    def note(self, delta: Delta) -> None:
        """Record a delta on its arrival; the last one has the finish."""

    def abandon(self) -> None:
        """Record that the client abandoned the request; not called after the finish, and at most once."""


class ServerMeter(Protocol):
    """Measures one server. One that raises is logged, and not asked again."""

    def begin(self, arrived: float, parent: str) -> RequestMeter:
        """Begin to measure a request.

        Args:
            arrived: the time of its arrival by `time.monotonic`.
            parent: its ``traceparent`` header (W3C Trace Context), or an empty text.
        """

    def count_error(self, kind: str) -> None:
        """Count an error that a client gets, as a response or at the end of a stream, by OpenAI's type of it."""


class Collector(Protocol):
    """Collects metrics on demand, as ``prometheus_client.registry.Collector`` does."""

    def collect(self) -> Iterable[Any]:
        """Return the metrics, each a ``prometheus_client.Metric``."""
