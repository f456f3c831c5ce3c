"""One simulated pipeline: its load, as the router knows it, and the progress of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from parallax_core.api import ArrivalView, InvalidRequest, ReplicaView, Unavailable
from parallax_core.api.simulation import ReplicaLoad, RequestLoad
from parallax_simulate.pipeline import DrawnTokens, SimulatedPipeline, SimulatedRequest


@dataclass(slots=True)
class ServedPart:
    """The part of an answer that one pipeline gave. Times are in seconds from the beginning."""

    number: int
    num_tokens: int = 0
    first: float = inf
    last: float = inf
    is_over: bool = False


class SimulatedReplica:
    """A pipeline, open or lost."""

    def __init__(self, rank: int, make: Callable[[], SimulatedPipeline]) -> None:
        """Open a pipeline, which ``make`` makes again after a loss."""
        self.wake_at = inf
        """When `wake` is to be called."""
        self.over: list[ServedPart] = []
        """The requests that have ended."""
        self._make = make
        self._pipeline = make()
        self._load = ReplicaLoad(rank)
        self._running: dict[int, tuple[ServedPart, RequestLoad]] = {}
        self._busy_s = [0.0] * len(self._pipeline.busy_s)
        self._is_open = True

    def open(self) -> None:
        """Begin again with empty caches."""
        self._pipeline = self._make()
        self._is_open = True

    def close(self) -> list[ServedPart]:
        """Lose everything that it computes; return the requests that have not ended, in the order of their numbers."""
        lost = [self._running[number] for number in sorted(self._running)]
        for _, load in lost:
            load.release()
        self._running.clear()
        self._busy_s = self.measure_busy()
        self._is_open, self.wake_at = False, inf
        return [progress for progress, _ in lost]

    @property
    def settle_at(self) -> float:
        """When there will be tokens that `settle` accounts for before `wake` does; infinity: there will be none."""
        return self._pipeline.settle_at if self._is_open else inf

    def view(self) -> ReplicaView:
        """Return a routing policy's view of it, without its cached prefixes."""
        return self._load.view(0)

    def measure_busy(self) -> list[float]:
        """Return the seconds that each stage has computed since the beginning."""
        if not self._is_open:
            return self._busy_s
        return [old + new for old, new in zip(self._busy_s, self._pipeline.busy_s, strict=True)]

    def wake(self, at: float) -> bool:
        """Advance the time; return whether there were tokens."""
        told = self._pipeline.advance(at)
        for drawn in told:
            self._note(drawn)
        self.wake_at = max(self._pipeline.next_at, at)
        return bool(told)

    def settle(self, now: float) -> float:
        """Account for the tokens that came before ``now``; return when there will be others."""
        for drawn in self._pipeline.settle(now):
            self._note(drawn)
        return self.settle_at

    def submit(self, request: SimulatedRequest, arrival: ArrivalView, now: float) -> bool:
        """Submit a request; return whether it was accepted."""
        try:
            self._pipeline.submit(request, now)
        except (Unavailable, InvalidRequest):
            return False
        self._running[request.number] = ServedPart(request.number), RequestLoad(self._load, arrival, 1, now=now)
        self.wake_at = min(self.wake_at, max(self._pipeline.next_at, now))
        return True

    def _note(self, drawn: DrawnTokens) -> None:
        progress, load = self._running[drawn.number]
        progress.last = drawn.at
        if drawn.num_tokens:
            progress.first = min(progress.first, drawn.at)
            progress.num_tokens += drawn.num_tokens
            load.note(0, drawn.num_tokens, drawn.at)
        if drawn.is_over:
            progress.is_over = True
            load.release()
            self.over.append(progress)
            del self._running[drawn.number]
