"""Requests to a server, and their results."""

from __future__ import annotations

from typing import Any

import msgspec


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    route: str
    """``/v1/completions`` or ``/v1/chat/completions``."""
    body: dict[str, Any]
    """The fields of the request, except the model and the streaming options."""
    at: float | None = None
    """When it was sent, in seconds from the beginning of its trace; None: it is of no trace."""


class BenchResult(msgspec.Struct, kw_only=True):
    """The result of a request. Times are in seconds from the beginning of the run."""

    sent: float
    """When it was sent."""
    first: float | None = None
    """When the first piece of text came."""
    last: float | None = None
    """When the answer was over."""
    gaps: list[float] = msgspec.field(default_factory=list)
    """Seconds between one piece of text and the next."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    """The error; empty if there was none."""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first is None else self.first - self.sent

    @property
    def e2e(self) -> float | None:
        """Seconds to the end."""
        return None if self.last is None else self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first."""
        if self.first is None or self.last is None or self.output_tokens < 2:  # noqa: PLR2004 -- a gap has two ends
            return None
        return (self.last - self.first) / (self.output_tokens - 1)
