"""Routes requests to replicas, and is itself an `Engine`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from parallax_core.base.errors import SHUTTING_DOWN, Overloaded, ParallaxError, RequestTimeout, Unavailable, UnknownName
from parallax_core.cluster.routing.choices import list_choices
from parallax_core.cluster.routing.load import RequestLoad
from parallax_core.cluster.routing.prefix_index import ReplicaPrefixIndex, make_keys
from parallax_core.contracts.engine import Engine, EngineStats, Finish, Health, Measured, Request, Stream
from parallax_core.contracts.policy import ArrivalView, RoutingPolicy
from parallax_core.contracts.status import ReplicaStatus
from parallax_core.engine.timing import Timeline, Timer
from parallax_core.node.events.requests import NO_EVENTS, RequestEvents
from parallax_core.node.policy.guard import RoutingGuard
from parallax_core.node.routing.attempt import RoutingAttempt
from parallax_core.node.routing.failover import FailoverStream, RequestProgress, RoutedStream
from parallax_core.node.routing.moves import MoveNeed, MoveOutcome, MoveQueue
from parallax_core.node.routing.replica import Replica
from parallax_core.node.status import describe_replica

logger = logging.getLogger(__name__)

SUSPECTED_S = 1.0
"""Seconds for which a replica that refused a request is suspected, so that a policy may avoid it."""
SUSPECTED_AFTER_LOSS_S = 10.0
"""Seconds for which a replica that was lost is suspected, once it is ready again or not."""
RECOVERY_TIMEOUT_S = 120.0
"""The default of the seconds that a request waits each time for a replica that accepts it."""


class Router:
    """An engine over one or more replicas, which keeps its own count of the tokens each has yet to compute.

    It offers only ready replicas to the policy. A request whose replica is lost moves to another, or waits for one that
    has room or is being repaired, and continues there after the tokens that its client has. After `MOST_MOVES` losses
    in a row it ends with the error of its replica. Belongs to one event loop.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        policy: RoutingPolicy,
        max_length: Callable[[], int],
        recovery_timeout_s: float = RECOVERY_TIMEOUT_S,
        events: RequestEvents = NO_EVENTS,
    ) -> None:
        """Route to ``engines``.

        Args:
            engines: the replicas, by rank.
            policy: chooses one for each request.
            max_length: returns the longest sequence in tokens, once the engines are ready.
            recovery_timeout_s: how long a request whose replica was lost waits for another one.
            events: is told when the replicas are ready, and when a request begins or ends.
        """
        self._replicas = [Replica(rank, engine) for rank, engine in enumerate(engines)]
        self._policy = RoutingGuard(policy)
        self._max_length = max_length
        self._recovery_timeout_s = recovery_timeout_s
        self._moves = MoveQueue()
        self._prefix_index = ReplicaPrefixIndex(len(self._replicas))
        self._starts: list[asyncio.Task[None]] = []
        self._additions: set[asyncio.Task[None]] = set()
        self._phase = Health(state="starting")
        self._num_arrivals = 0
        self.events = events
        self._clock: Timer = events.now

    async def start(self) -> None:
        """Start all replicas in parallel.

        Raises:
            Exception: the error of the first replica that did not start; all replicas are stopped then.
            Unavailable: if the router is stopped during the start, or was started before.
        """
        if self._phase.state != "starting" or self._starts:
            raise self._refusal()
        began = self._clock()
        try:
            await self._start_all()
        except BaseException as error:
            if self._phase.state == "starting":
                self._phase = Health(state="failed", reason=str(error))
            await self._stop_all()
            raise
        self._phase = Health(state="ready")
        self.events.note_ready(self._clock() - began)

    async def stop(self) -> None:
        """Stop all replicas in parallel, including those that are starting.

        Raises:
            Exception: the error of the first replica that did not stop, after all others have.
        """
        if self._phase.state != "failed":
            self._phase = Health(state="draining", reason=SHUTTING_DOWN)
        tasks = [*self._starts, *self._additions]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if errors := await self._stop_all():
            raise errors[0]

    def add(self, rank: int, engine: Engine) -> None:
        """Add a replica of a rank that no other has, and start it; it gets requests once it is ready."""
        self._replicas = sorted([*self._replicas, Replica(rank, engine)], key=lambda replica: replica.rank)
        self._prefix_index.add(rank)
        starting = asyncio.get_running_loop().create_task(engine.start())
        self._additions.add(starting)
        starting.add_done_callback(partial(self._note_start, rank))

    async def remove(self, rank: int) -> None:
        """Stop a replica for good; its requests go on on others.

        Raises:
            UnknownName: if there is no such replica.
        """
        replica = self._find(rank)
        self._replicas = [each for each in self._replicas if each is not replica]
        self._prefix_index.forget(rank)
        await replica.engine.stop()

    def submit(self, request: Request) -> Stream:
        """Accept a request; see `Engine.submit`. The caller reads its stream to the end or closes it."""
        if self._phase.state != "ready":
            raise self._refusal()
        self._check_moves()
        arrived = self._clock()
        attempt = RoutingAttempt(
            request=request,
            arrival=self._describe(request),
            keys=make_keys(request) if len(self._replicas) > 1 else (),
            progress=RequestProgress(request, Timeline(arrived, begun=arrived)),
        )
        placement = self._place(attempt, request)
        self._num_arrivals += 1

        def end(finish: Finish) -> None:
            attempt.is_over = True
            self.events.note_ended(request, finish)

        self.events.note_begun(request)
        return FailoverStream(placement, attempt.progress, partial(self._move, attempt), end, self._clock)

    def check_room(self) -> None:
        """Check that some replica would accept a request now; see `Admitting`."""
        self._check_moves()
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

    def can_resume(self, request: Request) -> bool:
        """Return whether every replica can continue an answer that another engine began; see `Resumable`."""
        return all(replica.can_resume(request) for replica in self._replicas)

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
        pairs = zip(self._replicas, found, strict=True)
        states = (f"{replica.rank} is {each.state}: {each.reason}" for replica, each in pairs if each in closed)
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

    def _note_start(self, rank: int, starting: asyncio.Task[None]) -> None:
        self._additions.discard(starting)
        if starting.cancelled() or (error := starting.exception()) is None:
            return
        if isinstance(error, Unavailable):  # it was stopped meanwhile, since a plan has dropped it
            logger.info("replica did not start rank=%d: %s", rank, error.message)
        else:
            logger.error("replica did not start rank=%d", rank, exc_info=error)

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
        left = {each.rank: each for each in self._replicas if each.rank not in attempt.tried and each.takes(request)}
        cached, arrival = self._prefix_index.find_cached(attempt.keys), attempt.view(request)
        refusal: Unavailable | None = None
        now = self._clock()
        views = tuple(replica.view(cached[rank], now) for rank, replica in left.items())
        for rank in list_choices(self._policy, arrival, views):
            replica = left[rank]
            try:
                stream = replica.engine.submit(request)
            except Unavailable as error:
                refusal, replica.suspected_until = refusal or error, now + SUSPECTED_S
            else:
                attempt.tried.add(replica.rank)
                self._prefix_index.note(attempt.keys, replica.rank)
                claim = RequestLoad(replica.load, arrival, request.n, now=now, cached=cached[replica.rank])
                return RoutedStream(replica, stream, claim)
        raise refusal or self._refusal()

    async def _move(self, attempt: RoutingAttempt, lost: Replica) -> MoveOutcome:
        """Place a request again whose replica was lost, or return how it ends.

        It waits for a replica that has room, or is being repaired, if none accepts it now.
        """
        has_begun = attempt.progress.num_tokens > 0
        is_stuck = has_begun and not lost.can_resume(attempt.request)
        if is_stuck or lost.engine.health().state == "ready" or not attempt.may_move():
            return None
        self._prefix_index.forget(lost.rank)
        lost.suspected_until = self._clock() + SUSPECTED_AFTER_LOSS_S
        until = self._clock() + self._recovery_timeout_s
        return await self._moves.place(attempt.rank, partial(self._place_again, attempt, lost, until))

    def _place_again(self, attempt: RoutingAttempt, lost: Replica, until: float) -> MoveOutcome | MoveNeed:
        """Place a request of a lost replica, or return its need for a move."""
        now = self._clock()
        if self._phase.state != "ready" or attempt.is_over:
            return None
        if now >= until:
            message = f"its replica was lost, and no other one had room for it within {self._recovery_timeout_s:g} s"
            return attempt.time_out(message)
        states = {replica.rank: replica.engine.health().state for replica in self._replicas}
        attempt.tried &= {rank for rank, state in states.items() if state != "starting"}
        if states.get(lost.rank) == "ready":
            attempt.tried.discard(lost.rank)
        placement = self._try_place(attempt, now, is_repairing="starting" in states.values())
        if isinstance(placement, RoutedStream):
            attempt.progress.moved_s = now - attempt.progress.timeline.arrived
            logger.info("request moved id=%s from=%d to=%d", attempt.request.id, lost.rank, placement.replica.rank)
        return placement

    def _try_place(self, attempt: RoutingAttempt, now: float, *, is_repairing: bool) -> MoveOutcome | MoveNeed:
        try:
            return self._place(attempt, attempt.make_request(now))
        except Overloaded:
            return "room"
        except Unavailable:
            return "replica" if is_repairing else None
        except RequestTimeout as error:
            return attempt.time_out(error.message)
        except ParallaxError:
            return None

    def _check_moves(self) -> None:
        """Raise Overloaded while requests of a lost replica wait for room, which new ones would take from them."""
        if self._moves.needs_room:
            raise Overloaded("requests of a lost replica are waiting already", "try again later")

    def _refusal(self) -> Unavailable:
        health = self.health()
        return Unavailable(f"the engine is {health.state}", health.reason)

    def _find(self, rank: int) -> Replica:
        for replica in self._replicas:
            if replica.rank == rank:
                return replica
        there = ", ".join(str(replica.rank) for replica in self._replicas)
        raise UnknownName(f"there is no replica {rank}", f"there are: {there}")


def _see(replica: Replica) -> Health:
    """Return the health of a replica for new requests: a drained one is not ready."""
    health = replica.engine.health()
    if replica.is_drained and health.state == "ready":
        return Health(state="draining", reason="it was drained by an operator")
    return health
