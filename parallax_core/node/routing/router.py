"""Routes requests to replicas, and is itself an `Engine`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from parallax_core.base.errors import SHUTTING_DOWN, ParallaxError, RequestTimeout, Unavailable, UnknownName
from parallax_core.contracts.engine import Engine, EngineStats, Finish, Health, Measured, Request, Stream
from parallax_core.contracts.policy import ArrivalView, RoutingPolicy
from parallax_core.contracts.status import ReplicaStatus
from parallax_core.engine.timing import Timeline, Timer
from parallax_core.node.policy.guard import RoutingGuard
from parallax_core.node.routing.failover import FailoverStream, RequestProgress, RoutedStream
from parallax_core.node.routing.prefix_affinity import ReplicaPrefixIndex, make_keys
from parallax_core.node.routing.replica import Replica, ReplicaUse
from parallax_core.node.status import describe_replica

logger = logging.getLogger(__name__)

MOST_MOVES = 3
"""The largest number of times a request begins again after the loss of its replica."""
REPAIR_S = 60.0
"""Seconds a request waits each time for a replica that accepts it."""
LOOK_S = 0.05
"""Seconds between attempts to place it during that wait."""


@dataclass(kw_only=True, slots=True)
class RoutingAttempt:
    """A request that is being routed, with the replicas it was sent to."""

    request: Request
    arrival: ArrivalView
    keys: Sequence[int]
    progress: RequestProgress
    tried: set[int] = field(default_factory=set)
    """The ranks of the replicas it was sent to and that were not repaired since."""
    num_moves: int = 0


class Router:
    """An engine over one or more replicas, which keeps its own count of the tokens each has yet to compute.

    It offers only ready replicas to the policy. A request whose replica is lost before it has answered anything moves
    to another, or waits for one that is being repaired; after `MOST_MOVES` losses, or if no replica accepts it in
    time, it ends with the error of its replica. Belongs to one event loop.
    """

    def __init__(self, engines: Sequence[Engine], policy: RoutingPolicy, max_length: Callable[[], int]) -> None:
        """Route to ``engines``; ``max_length`` returns the longest sequence in tokens, once they are ready."""
        self._replicas = tuple(Replica(rank, engine) for rank, engine in enumerate(engines))
        self._policy = RoutingGuard(policy)
        self._max_length = max_length
        self._prefix_index = ReplicaPrefixIndex(len(self._replicas))
        self._starts: list[asyncio.Task[None]] = []
        self._phase = Health(state="starting")
        self._num_arrivals = 0
        self._clock: Timer = time.monotonic

    async def start(self) -> None:
        """Start all replicas in parallel.

        Raises:
            Exception: the error of the first replica that did not start; all replicas are stopped then.
            Unavailable: if the router is stopped during the start, or was started before.
        """
        if self._phase.state != "starting" or self._starts:
            raise self._refusal()
        try:
            await self._start_all()
        except BaseException as error:
            if self._phase.state == "starting":
                self._phase = Health(state="failed", reason=str(error))
            await self._stop_all()
            raise
        self._phase = Health(state="ready")

    async def stop(self) -> None:
        """Stop all replicas in parallel, including those that are starting.

        Raises:
            Exception: the error of the first replica that did not stop, after all others have.
        """
        if self._phase.state != "failed":
            self._phase = Health(state="draining", reason=SHUTTING_DOWN)
        for task in self._starts:
            task.cancel()
        if self._starts:
            await asyncio.wait(self._starts)
        if errors := await self._stop_all():
            raise errors[0]

    def submit(self, request: Request) -> Stream:
        """Accept a request; see `Engine.submit`. The caller reads its stream to the end or closes it."""
        if self._phase.state != "ready":
            raise self._refusal()
        arrived = self._clock()
        attempt = RoutingAttempt(
            request=request,
            arrival=self._describe(request),
            keys=make_keys(request) if len(self._replicas) > 1 else (),
            progress=RequestProgress(request, Timeline(arrived, begun=arrived)),
        )
        placement = self._place(attempt, request)
        self._num_arrivals += 1
        move, end = partial(self._move, attempt), partial(self._end, request)
        return FailoverStream(placement, attempt.progress, move, end, self._clock)

    def check_room(self) -> None:
        """Check that some replica would accept a request now; see `Admitting`."""
        refusal: Unavailable | None = None
        for replica in self._replicas if self._phase.state == "ready" else ():
            if not replica.is_open:
                continue
            try:
                replica.check_room()
            except Unavailable as error:
                refusal = refusal or error
            else:
                return
        raise refusal or self._refusal()

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the statistics of each replica; see `Measured`. An engine without statistics counts as idle."""
        engines = (replica.engine for replica in self._replicas)
        found = (engine.stats() if isinstance(engine, Measured) else () for engine in engines)
        return tuple(next(iter(stats), EngineStats()) for stats in found)

    def health(self) -> Health:
        """Return ready if any replica accepts requests; the reason lists the others with their states."""
        found = [_see(replica) for replica in self._replicas]
        if self._phase.state == "starting":
            reasons = dict.fromkeys(each.reason for each in found if each.reason)
            return Health(state="starting", reason="; ".join(reasons))
        if self._phase.state != "ready":
            return self._phase
        closed = [health for health in found if health.state != "ready"]
        if not closed:
            return self._phase
        if len(found) == 1:
            return closed[0]
        states = (f"{rank} is {each.state}: {each.reason}" for rank, each in enumerate(found) if each in closed)
        reason = f"{len(closed)} of {len(found)} replicas are not ready: {'; '.join(states)}"
        if len(closed) < len(found):
            return Health(state="ready", reason=reason)
        closed_states = {health.state for health in closed}
        state = next(state for state in ("starting", "draining", "failed") if state in closed_states)
        return Health(state=state, reason=reason)

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of each replica; see `Described`."""
        return tuple(map(describe_replica, self._replicas))

    def drain(self, rank: int) -> None:
        """Send a replica no new requests; it finishes those it has.

        Raises:
            UnknownName: if there is no such replica.
        """
        self._find(rank).is_drained = True
        logger.info("replica drained rank=%d", rank)

    def readmit(self, rank: int) -> None:
        """Send a replica requests again.

        Raises:
            UnknownName: if there is no such replica.
        """
        self._find(rank).is_drained = False
        logger.info("replica readmitted rank=%d", rank)

    async def _start_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._starts = [group.create_task(replica.engine.start()) for replica in self._replicas]
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
        if any(task.cancelled() for task in self._starts):
            raise self._refusal()

    async def _stop_all(self) -> list[BaseException]:
        ends = await asyncio.gather(*(replica.engine.stop() for replica in self._replicas), return_exceptions=True)
        errors = [end for end in ends if end is not None]
        for error in errors:
            logger.error("replica did not stop", exc_info=error)
        return errors

    def _describe(self, request: Request) -> ArrivalView:
        num_prompt = len(request.prompt)
        room = max(0, self._max_length() - num_prompt)
        most = min(room, request.default_max_tokens or room) if request.max_tokens is None else request.max_tokens
        return ArrivalView(number=self._num_arrivals, num_prompt=num_prompt, max_output=most * request.n)

    def _place(self, attempt: RoutingAttempt, request: Request) -> RoutedStream:
        """Submit the request to the policy's first choice that accepts it, among the replicas not tried yet."""
        left = {replica.rank: replica for replica in self._replicas if replica.is_open}
        for rank in attempt.tried:
            left.pop(rank, None)
        cached = self._prefix_index.find_cached(attempt.keys)
        refusal: Unavailable | None = None
        while left:
            views = tuple(replica.view(cached[rank]) for rank, replica in left.items())
            replica = left.pop(self._policy.choose(attempt.arrival, views))
            try:
                stream = replica.engine.submit(request)
            except Unavailable as error:
                refusal = refusal or error
            else:
                attempt.tried.add(replica.rank)
                self._prefix_index.note(attempt.keys, replica.rank)
                return RoutedStream(replica, stream, ReplicaUse(replica, attempt.arrival, request.n))
        raise refusal or self._refusal()

    async def _move(self, attempt: RoutingAttempt, lost: Replica) -> RoutedStream | None:
        """Place a request again whose replica was lost, waiting for one that is being repaired if necessary.

        None if its replica was not lost, or no replica accepts it in time.
        """
        if lost.engine.health().state == "ready" or attempt.num_moves >= MOST_MOVES:
            return None
        self._prefix_index.forget(lost.rank)
        attempt.num_moves += 1
        until = self._clock() + REPAIR_S
        while self._phase.state == "ready" and (now := self._clock()) < until:
            if lost.engine.health().state in {"starting", "ready"}:
                attempt.tried.discard(lost.rank)
            try:
                placement = self._place(attempt, _age(attempt, now))
            except Unavailable:
                if not any(each.engine.health().state == "starting" for each in self._replicas):
                    return None
                await asyncio.sleep(LOOK_S)
            except ParallaxError:
                return None
            else:
                attempt.progress.moved_s = now - attempt.progress.timeline.arrived
                logger.info("request moved id=%s from=%d to=%d", attempt.request.id, lost.rank, placement.replica.rank)
                return placement
        return None

    def _end(self, request: Request, finish: Finish) -> None:
        """A request is over, in whatever way; called once for each stream."""

    def _refusal(self) -> Unavailable:
        health = self.health()
        return Unavailable(f"the engine is {health.state}", health.reason)

    def _find(self, rank: int) -> Replica:
        if rank not in range(len(self._replicas)):
            message = f"there is no replica {rank}"
            raise UnknownName(message, f"there are {len(self._replicas)}, from 0 on")
        return self._replicas[rank]


def _see(replica: Replica) -> Health:
    """Return the health of a replica for new requests: a drained one is not ready."""
    health = replica.engine.health()
    if replica.is_drained and health.state == "ready":
        return Health(state="draining", reason="it was drained by an operator")
    return health


def _age(attempt: RoutingAttempt, now: float) -> Request:
    """Return the request with the time it has waited.

    Raises:
        RequestTimeout: if its timeout has passed.
    """
    request = attempt.request
    if request.timeout_s is None:
        return request
    waited_s = request.waited_s + now - attempt.progress.timeline.arrived
    if waited_s >= request.timeout_s:
        raise RequestTimeout(f"timed out after {request.timeout_s:g} seconds")
    return dataclasses.replace(request, waited_s=waited_s)
