"""The decision: requests that come fast are worth waiting for, and one that comes alone is not held up."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.api import QueueView


@dataclass(frozen=True, slots=True)
class Rush:
    """Each request that is ready earns the step ``gap_s`` seconds, up to ``most_s``.

    While requests come faster than one in ``gap_s``, the step goes on waiting and grows; as soon as they come more
    slowly, it begins. Nothing is remembered: the queue itself tells how fast it has grown.
    """

    gap_s: float = 0.002
    """The longest time between two requests that is still a rush, in seconds."""
    most_s: float = 0.03
    """The longest that the first request is held up, in seconds."""

    def __post_init__(self) -> None:
        """Refuse options that make no sense, as users may give any."""
        if not 0 <= self.gap_s <= self.most_s < float("inf"):
            raise ValueError(f"gap_s is {self.gap_s:g} and most_s {self.most_s:g}: 0 <= gap_s <= most_s is needed")

    def wait_s(self, queue: QueueView) -> float:
        """Return what is left of the time that the requests have earned; see `parallax_core.api.BatchingPolicy`."""
        return max(0.0, min(self.most_s, self.gap_s * queue.num_ready) - queue.oldest_wait_s)
