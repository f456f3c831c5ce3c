"""Simulates all pipelines of a placement: arrivals, routing, losses, and what becomes of each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random

from parallax_core.base.errors import InvalidRequest, Unavailable
from parallax_core.cluster.routing.choices import list_choices
from parallax_core.cluster.routing.load import ReplicaLoad, RequestLoad
from parallax_core.cluster.routing.prefix_index import ReplicaPrefixIndex, make_keys
from parallax_core.cluster.simulate.pipeline import DrawnTokens, SimulatedPipeline, SimulatedRequest
from parallax_core.cluster.simulate.trace import Arrival
from parallax_core.contracts.policy import ArrivalView, ReplicaView, RoutingPolicy

RETRY_S = 0.05
"""Seconds after which a request is routed again whose pipeline was lost and for which no other has room."""

MOST_SETTLED = 64
"""With at most so many pipelines, the router knows of every token at once, also in a coarse simulation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChurnOptions:
    """How often pipelines lose a node."""

    every_s: float = inf
    """Mean seconds between two losses in the whole cluster; they are a Poisson process."""
    down_s: float = 30.0
    """Seconds until the pipeline serves again, with empty caches."""
    seed: int = 0


@dataclass(slots=True)
class RequestRecord:
    """What happened to a request. Times are in seconds from the beginning."""

    arrival: Arrival
    num_tokens: int = 0
    first: float = inf
    last: float = inf
    is_over: bool = False
    is_refused: bool = False
    num_moves: int = 0
    rank: int = -1
    load: RequestLoad | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.first - self.arrival.at

    @property
    def token_s(self) -> float:
        """Seconds per token after the first."""
        return (self.last - self.first) / max(self.arrival.output_tokens - 1, 1)


@dataclass(slots=True)
class _Replica:
    """A pipeline, open or lost."""

    make: Callable[[], SimulatedPipeline]
    load: ReplicaLoad
    pipeline: SimulatedPipeline = field(init=False)
    view: ReplicaView = field(init=False)
    closed_until: float = 0.0
    wake_at: float = inf
    running: set[int] = field(default_factory=set)
    busy_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Begin with empty caches."""
        self.pipeline = self.make()
        self.busy_s = self.busy_s or [0.0] * len(self.pipeline.busy_s)
        self.look()

    def close(self, until: float) -> None:
        """Lose everything that it computes."""
        self.busy_s = self.measure_busy()
        self.closed_until, self.wake_at = until, inf
        self.running.clear()

    def look(self) -> None:
        """Renew the view that policies get, after a change of the load."""
        self.view = self.load.view(0)

    def measure_busy(self) -> list[float]:
        """Return the seconds that each stage has computed since the beginning."""
        return [old + new for old, new in zip(self.busy_s, self.pipeline.busy_s, strict=True)]


class ClusterSimulation:
    """Routes the arrivals of a trace to pipelines in virtual time. It has no clock but the times of its events."""

    def __init__(
        self,
        pipelines: Iterable[Callable[[], SimulatedPipeline]],
        policy: RoutingPolicy,
        churn: ChurnOptions | None = None,
        *,
        has_prefixes: bool = False,
    ) -> None:
        """Simulate pipelines, each of which is made again after a loss.

        Args:
            pipelines: make them.
            policy: chooses a pipeline for each request.
            churn: losses; None: there are none.
            has_prefixes: whether prompts share beginnings, which the router then keeps account of.
        """
        self._replicas = [_Replica(make, ReplicaLoad(rank)) for rank, make in enumerate(pipelines)]
        self._views = [replica.view for replica in self._replicas]
        self._num_closed = 0
        self._policy = policy
        self._churn = churn or ChurnOptions()
        self._random = Random(self._churn.seed)  # noqa: S311 -- the same losses for the same seed
        self._index = ReplicaPrefixIndex(len(self._replicas)) if has_prefixes else None
        self._wakes: list[tuple[float, int]] = []
        self._retries: list[tuple[float, int, int]] = []
        self._opens: list[tuple[float, int]] = []
        self._next_loss = self._draw_loss(0.0)
        self.records: list[RequestRecord] = []
        self.num_losses = 0
        self.now = 0.0

    def run(self, trace: Iterable[Arrival]) -> None:
        """Let all requests of a trace, in order of time, arrive and end."""
        for arrival in trace:
            self._pass(arrival.at)
            self.records.append(RequestRecord(arrival))
            self._route(len(self.records) - 1, arrival.at)
        self._next_loss = inf
        self._pass(inf)

    def measure_busy(self) -> list[list[float]]:
        """Return the seconds that each stage of each pipeline has computed."""
        return [replica.measure_busy() for replica in self._replicas]

    def _pass(self, until: float) -> None:
        """Process the events before ``until``."""
        while True:
            opens, wakes, retries = (
                queue[0][0] if queue else inf for queue in (self._opens, self._wakes, self._retries)
            )
            at = min(opens, wakes, retries, self._next_loss)
            if at > until or at == inf:
                break
            self.now = at
            if at == opens:
                self._replicas[heappop(self._opens)[1]].open()
                self._num_closed -= 1
            elif at == wakes:
                self._wake(*heappop(self._wakes))
            elif at == retries:
                _, _, number = heappop(self._retries)
                self._route(number, at)
            else:
                self._lose(at)
        if until < inf:
            self.now = max(self.now, until)

    def _wake(self, at: float, rank: int) -> None:
        replica = self._replicas[rank]
        if at != replica.wake_at:
            return  # it was woken earlier, or lost
        replica.wake_at = inf
        told = replica.pipeline.advance(at)
        for drawn in told:
            self._note(replica, drawn)
        if told:
            self._look(replica)
        self._await(replica)

    def _settle(self, replica: _Replica, now: float) -> None:
        """Account for the tokens that came before ``now``."""
        if replica.closed_until <= now and (told := replica.pipeline.settle(now)):
            for drawn in told:
                self._note(replica, drawn)
            self._look(replica)
            self._await(replica)

    def _look(self, replica: _Replica) -> None:
        """Renew the view that policies get."""
        replica.look()
        self._views[replica.load.rank] = replica.view

    def _await(self, replica: _Replica) -> None:
        at = max(replica.pipeline.next_at, self.now)
        if at < replica.wake_at:
            replica.wake_at = at
            heappush(self._wakes, (at, replica.load.rank))

    def _note(self, replica: _Replica, drawn: DrawnTokens) -> None:
        record = self.records[drawn.number]
        if drawn.num_tokens and record.first == inf:
            record.first = drawn.at
        record.num_tokens += drawn.num_tokens
        record.last = drawn.at
        if record.load is None:
            return
        if drawn.num_tokens:
            record.load.note(0, drawn.num_tokens, drawn.at)
        if drawn.is_over:
            record.is_over = True
            record.load.release()
            record.load = None
            replica.running.discard(drawn.number)

    def _route(self, number: int, now: float) -> None:
        """Submit a request to the policy's first choice that accepts it, as the router does."""
        record = self.records[number]
        request = SimulatedRequest(number, record.arrival, record.num_tokens)
        keys = make_keys(request.make_request()) if self._index else ()
        if len(self._replicas) <= MOST_SETTLED:
            for replica in self._replicas:
                self._settle(replica, now)
        view = ArrivalView(
            number=number,
            num_prompt=record.arrival.prompt_tokens + record.num_tokens,
            max_output=record.arrival.output_tokens - record.num_tokens,
        )
        for rank in self._list_choices(view, keys, now):
            if self._submit(rank, request, view, now):
                if self._index:
                    self._index.note(keys, rank)
                return
        if record.num_moves or not any(replica.closed_until <= now for replica in self._replicas):
            heappush(self._retries, (now + RETRY_S, -record.num_moves, number))
        else:
            record.is_refused = True

    def _list_choices(self, view: ArrivalView, keys: Iterable[int], now: float) -> Iterator[int]:
        """Yield the policy's choices: the first at once, since a large cluster has many to look at for the next."""
        if self._index is not None or self._num_closed:
            yield from list_choices(self._policy, view, self._list_views(keys, now))
            return
        yield (first := self._policy.choose(view, self._views))
        yield from list_choices(self._policy, view, [each for each in self._views if each.rank != first])

    def _list_views(self, keys: Iterable[int], now: float) -> list[ReplicaView]:
        is_open = [replica for replica in self._replicas if replica.closed_until <= now]
        if self._index is None:
            return [replica.view for replica in is_open]
        cached = self._index.find_cached(list(keys))
        return [replica.load.view(cached[replica.load.rank]) for replica in is_open]

    def _submit(self, rank: int, request: SimulatedRequest, view: ArrivalView, now: float) -> bool:
        replica = self._replicas[rank]
        self._settle(replica, now)
        try:
            replica.pipeline.submit(request, now)
        except (Unavailable, InvalidRequest):
            return False
        record = self.records[request.number]
        record.rank, record.load = rank, RequestLoad(replica.load, view, 1, now=now)
        replica.running.add(request.number)
        self._look(replica)
        self._await(replica)
        return True

    def _draw_loss(self, now: float) -> float:
        every_s = self._churn.every_s
        return now + self._random.expovariate(1 / every_s) if every_s < inf else inf

    def _lose(self, now: float) -> None:
        """Lose a random pipeline: its requests move to others, with the tokens they have."""
        self._next_loss = self._draw_loss(now)
        replica = self._random.choice(self._replicas)
        if replica.closed_until > now:
            return
        self._settle(replica, now)
        self.num_losses += 1
        self._num_closed += 1
        numbers = sorted(replica.running)
        until = now + self._churn.down_s
        replica.close(until)
        heappush(self._opens, (until, replica.load.rank))
        if self._index:
            self._index.forget(replica.load.rank)
        for number in numbers:
            record = self.records[number]
            if record.load is not None:
                record.load.release()
                record.load = None
            record.num_moves += 1
            self._route(number, now)
        self._look(replica)
