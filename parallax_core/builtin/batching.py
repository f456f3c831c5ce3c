"""When the next step begins: the policies core brings. They are named as in the literature on dynamic batching."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.contracts.policy import QueueView


class WorkConserving:
    """Begin whenever the pipeline has room for a step: nothing idles while something could run."""

    def wait_s(self, queue: QueueView) -> float:
        """Return 0: that there is room is the engine's own condition."""
        del queue
        return 0.0


@dataclass(frozen=True, slots=True)
class SizeOrDelay:
    """Begin when ``size`` requests are ready, or the first has been for ``delay_s`` seconds."""

    size: int
    delay_s: float

    def wait_s(self, queue: QueueView) -> float:
        """Return what is left of the delay."""
        return 0.0 if queue.num_ready >= self.size else max(0.0, self.delay_s - queue.oldest_wait_s)


@dataclass(frozen=True, slots=True)
class Size:
    """Begin when ``size`` requests are ready; the engine's own limit begins a smaller step at last."""

    size: int

    def wait_s(self, queue: QueueView) -> float:
        """Return infinity until there are enough."""
        return 0.0 if queue.num_ready >= self.size else float("inf")


@dataclass(frozen=True, slots=True)
class Delay:
    """Begin when the first request has been ready for ``delay_s`` seconds."""

    delay_s: float

    def wait_s(self, queue: QueueView) -> float:
        """Return what is left of the delay."""
        return max(0.0, self.delay_s - queue.oldest_wait_s)
