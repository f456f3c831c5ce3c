"""Batching policies, named as in the literature on dynamic batching.

Whatever a policy answers, the engine never begins a step that does not fit into the pipeline, and never holds one back
for longer than its own limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallax_core.api import QueueView

SIZE = 8
"""The default number of requests."""
DELAY_S = 0.016
"""The default delay, in seconds: about one decode step of a medium model; a longer one costs more than it gains."""


@dataclass(frozen=True, slots=True)
class Size:
    """Begin when ``size`` requests are ready; the engine begins a smaller step after its own limit."""

    size: int = SIZE

    def __post_init__(self) -> None:
        _check_size(self.size)

    def wait_s(self, queue: QueueView) -> float:
        """Return infinity until enough requests are ready."""
        return 0.0 if queue.num_ready >= self.size else math.inf


@dataclass(frozen=True, slots=True)
class Delay:
    """Begin when the first request has been ready for ``delay_s`` seconds."""

    delay_s: float = DELAY_S

    def __post_init__(self) -> None:
        _check_delay(self.delay_s)

    def wait_s(self, queue: QueueView) -> float:
        """Return the remaining delay, in seconds."""
        return max(0.0, self.delay_s - queue.oldest_wait_s)


@dataclass(frozen=True, slots=True)
class SizeOrDelay:
    """Begin when ``size`` requests are ready or the first has been ready for ``delay_s`` seconds."""

    size: int = SIZE
    delay_s: float = DELAY_S

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check_delay(self.delay_s)

    def wait_s(self, queue: QueueView) -> float:
        """Return the remaining delay, in seconds."""
        return 0.0 if queue.num_ready >= self.size else max(0.0, self.delay_s - queue.oldest_wait_s)


def _check_size(size: int) -> None:
    if size < 1:
        message = f"size is {size}; it must be at least 1"
        raise ValueError(message)


def _check_delay(delay_s: float) -> None:
    if not 0 <= delay_s < math.inf:
        message = f"delay_s is {delay_s:g}; it must be 0 or more seconds"
        raise ValueError(message)
