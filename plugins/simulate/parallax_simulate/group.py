"""The pipelines that one process simulates: they meet only where requests are routed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from parallax_core.api import ArrivalView, ReplicaView
from parallax_simulate.pipeline import SimulatedPipeline, SimulatedRequest
from parallax_simulate.replica import ServedPart, SimulatedReplica


class ReplicaGroup(Protocol):
    """Pipelines by rank. Each `start` is followed by a `collect`, so that several groups may compute at once."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of the pipelines."""

    def start(self, until: float, *, is_routing: bool) -> None:
        """Begin to let the time pass, up to all that happens at ``until``; ``is_routing``: a request is routed then."""

    def collect(self) -> Iterable[ReplicaView]:
        """Finish what `start` began; return the views that have changed."""

    def submit(
        self, rank: int, request: SimulatedRequest, arrival: ArrivalView, now: float
    ) -> tuple[bool, ReplicaView]:
        """Submit a request; return whether it was accepted, and the view after it."""

    def close(self, rank: int) -> tuple[Sequence[ServedPart], ReplicaView]:
        """Lose a pipeline; return its unfinished requests, and the view after it."""

    def open(self, rank: int) -> None:
        """Open a lost pipeline again."""

    def finish(self) -> tuple[Sequence[ServedPart], Sequence[Sequence[float]]]:
        """Return what has become of the requests, and the seconds that the stages of each pipeline have computed."""


class LocalGroup:
    """Pipelines of this process."""

    def __init__(self, makers: Mapping[int, Callable[[], SimulatedPipeline]]) -> None:
        """Open pipelines, which ``makers`` make, by rank."""
        self._replicas = {rank: SimulatedReplica(rank, make) for rank, make in makers.items()}
        self._wakes: list[tuple[float, int]] = []
        self._settles: dict[int, float] = {}
        """By rank: the time of tokens that the router must see before the next wake-up."""
        self._until, self._is_routing = 0.0, False

    @property
    def ranks(self) -> list[int]:
        """The ranks of the pipelines."""
        return list(self._replicas)

    def start(self, until: float, *, is_routing: bool) -> None:
        """Note until when the time passes."""
        self._until, self._is_routing = until, is_routing

    def collect(self) -> list[ReplicaView]:
        """Process all events up to that time."""
        wakes, until, changed = self._wakes, self._until, dict[int, SimulatedReplica]()
        while wakes and wakes[0][0] <= until:
            at, rank = heappop(wakes)
            replica = self._replicas[rank]
            if at != replica.wake_at:
                continue  # it was woken earlier, or lost
            if replica.wake(at):
                changed[rank] = replica
            self._await(rank, replica)
        if self._is_routing:
            for rank in [rank for rank, at in self._settles.items() if at <= until]:
                replica = changed[rank] = self._replicas[rank]
                self._settles[rank] = replica.settle(until)
        return [replica.view() for replica in changed.values()]

    @property
    def next_at(self) -> float:
        """When something happens next; infinity: nothing does."""
        while self._wakes and self._wakes[0][0] != self._replicas[self._wakes[0][1]].wake_at:
            heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else inf

    def take_over(self) -> list[ServedPart]:
        """Return the requests that have ended since the last call; `finish` returns the others."""
        over = [each for replica in self._replicas.values() for each in replica.over]
        for replica in self._replicas.values():
            replica.over.clear()
        return over

    def submit(
        self, rank: int, request: SimulatedRequest, arrival: ArrivalView, now: float
    ) -> tuple[bool, ReplicaView]:
        """Submit a request; return whether it was accepted, and the view after it."""
        replica = self._replicas[rank]
        before = replica.wake_at
        is_accepted = replica.submit(request, arrival, now)
        if replica.wake_at < before:
            heappush(self._wakes, (replica.wake_at, rank))
        return is_accepted, replica.view()

    def close(self, rank: int) -> tuple[list[ServedPart], ReplicaView]:
        """Lose a pipeline; return its unfinished requests, and the view after it."""
        replica = self._replicas[rank]
        self._settles.pop(rank, None)
        return replica.close(), replica.view()

    def open(self, rank: int) -> None:
        """Open a lost pipeline again."""
        self._replicas[rank].open()

    def finish(self) -> tuple[list[ServedPart], list[list[float]]]:
        """Return what has become of the requests, and the seconds that the stages of each pipeline have computed."""
        over = [progress for replica in self._replicas.values() for progress in replica.over]
        return over, [replica.measure_busy() for replica in self._replicas.values()]

    def _await(self, rank: int, replica: SimulatedReplica) -> None:
        """Schedule a replica's next wake-up."""
        if replica.wake_at < inf:
            heappush(self._wakes, (replica.wake_at, rank))
        if replica.settle_at < inf:
            self._settles[rank] = replica.settle_at
        else:
            self._settles.pop(rank, None)
