"""When the next step begins: the policies core brings. They are named as in the literature on dynamic batching.

Whatever they answer, the engine itself never begins a step that the pipeline has no room for, and holds none back for
longer than its own limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallax_core.contracts.policy import QueueView

SIZE = 8
DELAY_S = 0.016
"""About one decode step of a model of middle size: waiting longer costs more than the larger step gains."""


@dataclass(frozen=True, slots=True)
class WorkConserving:
    """Begin whenever the pipeline has room for a step: nothing idles while something could run."""

    def wait_s(self, queue: QueueView) -> float:
        """Return 0: that there is room is the engine's own condition."""
        del queue
        return 0.0


@dataclass(frozen=True, slots=True)
class Size:
    """Begin when ``size`` requests are ready; the engine's own limit begins a smaller step at last."""

    size: int = SIZE

    def __post_init__(self) -> None:
        _check_size(self.size)

    def wait_s(self, queue: QueueView) -> float:
        """Return infinity until there are enough."""
        return 0.0 if queue.num_ready >= self.size else math.inf


@dataclass(frozen=True, slots=True)
class Delay:
    """Begin when the first request has been ready for ``delay_s`` seconds."""

    delay_s: float = DELAY_S

    def __post_init__(self) -> None:
        _check_delay(self.delay_s)

    def wait_s(self, queue: QueueView) -> float:
        """Return what is left of the delay."""
        return max(0.0, self.delay_s - queue.oldest_wait_s)


@dataclass(frozen=True, slots=True)
class SizeOrDelay:
    """Begin when ``size`` requests are ready, or the first has been for ``delay_s`` seconds."""

    size: int = SIZE
    delay_s: float = DELAY_S

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check_delay(self.delay_s)

    def wait_s(self, queue: QueueView) -> float:
        """Return what is left of the delay."""
        return 0.0 if queue.num_ready >= self.size else max(0.0, self.delay_s - queue.oldest_wait_s)


def _check_size(size: int) -> None:
    if size < 1:
        message = f"size is {size}, and must be at least 1"
        raise ValueError(message)


def _check_delay(delay_s: float) -> None:
    if not 0 <= delay_s < math.inf:
        message = f"delay_s is {delay_s:g}, and must be 0 or more seconds"
        raise ValueError(message)
