"""Simulates all pipelines of a placement: arrivals, routing, losses, and what becomes of each request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from random import Random

from parallax_core.api import ArrivalView, Progress, ReplicaView, RoutingPolicy, silent
from parallax_core.api.simulation import ReplicaLoad, ReplicaPrefixIndex, list_choices, make_keys
from parallax_simulate.group import LocalGroup, ReplicaGroup
from parallax_simulate.pipeline import SimulatedRequest
from parallax_simulate.replica import ServedPart
from parallax_simulate.trace import Arrival

RETRY_S = 0.05
"""Seconds between attempts to route a request of a lost pipeline while no other has room."""

REFUSED_S = 1.0
"""Seconds that a user waits after a refusal."""
REPORTS = 500
"""How often progress is told of."""


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

    def add(self, progress: ServedPart) -> None:
        """Add what it got from one pipeline."""
        self.num_tokens += progress.num_tokens
        self.first = min(self.first, progress.first)
        self.last = progress.last if progress.last < inf else self.last
        self.is_over = progress.is_over

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.first - self.arrival.at

    @property
    def token_s(self) -> float:
        """Seconds per token after the first."""
        return (self.last - self.first) / max(self.arrival.output_tokens - 1, 1)


class ClusterSimulation:
    """Routes the arrivals of a trace to pipelines in virtual time. It has no clock but the times of its events."""

    def __init__(
        self,
        groups: Sequence[ReplicaGroup],
        policy: RoutingPolicy,
        churn: ChurnOptions | None = None,
        *,
        has_prefixes: bool = False,
    ) -> None:
        """Simulate pipelines, each of which is made again after a loss.

        Args:
            groups: of the pipelines; together they have all ranks from 0 on. The figures are the same for any groups.
            policy: chooses a pipeline for each request.
            churn: losses; None: no losses.
            has_prefixes: whether prompts share beginnings, which the router then keeps account of.
        """
        self._groups = groups
        owners = {rank: group for group in groups for rank in group.ranks}
        self._owners = [owners[rank] for rank in range(len(owners))]
        self._views = [ReplicaLoad(rank).view(0) for rank in range(len(owners))]
        self._closed: set[int] = set()
        self._policy = policy
        self._churn = churn or ChurnOptions()
        self._random = Random(self._churn.seed)  # noqa: S311 -- the same losses for the same seed
        self._index = ReplicaPrefixIndex(len(owners)) if has_prefixes else None
        self._retries: list[tuple[float, int, int]] = []
        self._opens: list[tuple[float, int]] = []
        self._next_loss = self._draw_loss(0.0)
        self.records: list[RequestRecord] = []
        self.busy_s: list[Sequence[float]] = []
        """The seconds that each stage of each pipeline has computed."""
        self.num_losses = 0

    def run(self, trace: Sequence[Arrival], progress: Progress = silent) -> None:
        """Run all requests of a trace, in order of time; ``progress`` gets the number that has arrived."""
        every = max(1, len(trace) // REPORTS)
        for number, arrival in enumerate(trace):
            if number % every == 0:
                progress("requests", number, len(trace), "items")
            self._pass(arrival.at)
            self._advance(arrival.at, is_routing=True)
            self.records.append(RequestRecord(arrival))
            self._route(number, arrival.at)
        self._next_loss = inf
        self._pass(inf)
        self._advance(inf)
        progress("requests", len(trace), len(trace), "items")
        self._finish()

    def run_closed(
        self, trace: Sequence[Arrival], num_users: int, group: LocalGroup, progress: Progress = silent
    ) -> None:
        """Run the requests of a trace, whose times do not count, for users who each send the next one after an answer.

        Args:
            trace: the requests, in the order in which users take them.
            num_users: users. One whose request is refused waits `REFUSED_S`.
            group: all pipelines.
            progress: gets the number of requests sent.
        """
        every, waiting = max(1, len(trace) // REPORTS), [0.0] * num_users
        while (has_more := len(self.records) < len(trace)) or len(waiting) < num_users:
            opens, retries = (queue[0][0] if queue else inf for queue in (self._opens, self._retries))
            sends = waiting[0] if waiting and has_more else inf
            at = min(sends, group.next_at, opens, retries, self._next_loss)
            if at == inf:
                break
            self._pass(at)
            self._advance(at, is_routing=True)
            for part in group.take_over():
                self.records[part.number].add(part)
                heappush(waiting, at)
            while waiting and waiting[0] <= at and (number := len(self.records)) < len(trace):
                heappop(waiting)
                if number % every == 0:
                    progress("requests", number, len(trace), "items")
                self.records.append(record := RequestRecord(replace(trace[number], at=at)))
                self._route(number, at)
                if record.is_refused:
                    heappush(waiting, at + REFUSED_S)
        progress("requests", len(self.records), len(trace), "items")
        self._finish()

    def _finish(self) -> None:
        busy_s = dict[int, Sequence[float]]()
        for group in self._groups:
            over, busy = group.finish()
            for each in over:
                self.records[each.number].add(each)
            busy_s.update(zip(group.ranks, busy, strict=True))
        self.busy_s = [busy_s[rank] for rank in range(len(busy_s))]

    def _pass(self, until: float) -> None:
        """Process the losses, and what follows from them, up to ``until``."""
        while True:
            opens, retries = (queue[0][0] if queue else inf for queue in (self._opens, self._retries))
            at = min(opens, retries, self._next_loss)
            if at > until or at == inf:
                break
            if at == opens:
                self._open(heappop(self._opens)[1])
                continue
            self._advance(at, is_routing=True)
            if at == retries:
                self._route(heappop(self._retries)[2], at)
            else:
                self._lose(at)

    def _advance(self, until: float, *, is_routing: bool = False) -> None:
        """Advance the pipelines to ``until``."""
        for group in self._groups:
            group.start(until, is_routing=is_routing)
        for group in self._groups:
            for view in group.collect():
                self._views[view.rank] = view

    def _route(self, number: int, now: float) -> None:
        """Submit a request to the policy's first choice that accepts it, as the router does."""
        record = self.records[number]
        request = SimulatedRequest(number, record.arrival, record.num_tokens)
        keys = make_keys(request.make_request()) if self._index else ()
        view = ArrivalView(
            number=number,
            num_prompt=record.arrival.prompt_tokens + record.num_tokens,
            max_output=record.arrival.output_tokens - record.num_tokens,
        )
        for rank in self._list_choices(view, keys):
            is_accepted, self._views[rank] = self._owners[rank].submit(rank, request, view, now)
            if is_accepted:
                record.rank = rank
                if self._index:
                    self._index.note(keys, rank)
                return
        if record.num_moves or len(self._closed) == len(self._views):
            heappush(self._retries, (now + RETRY_S, -record.num_moves, number))
        else:
            record.is_refused = True

    def _list_choices(self, view: ArrivalView, keys: Iterable[int]) -> Iterator[int]:
        """Yield the policy's choices: the first at once, since a large cluster has many to look at for the next."""
        if self._index is not None or self._closed:
            yield from list_choices(self._policy, view, self._list_views(keys))
            return
        yield (first := self._policy.choose(view, self._views))
        yield from list_choices(self._policy, view, [each for each in self._views if each.rank != first])

    def _list_views(self, keys: Iterable[int]) -> list[ReplicaView]:
        are_open = [view for view in self._views if view.rank not in self._closed]
        if self._index is None:
            return are_open
        cached = self._index.find_cached(list(keys))
        return [replace(view, cached_tokens=cached[view.rank]) for view in are_open]

    def _draw_loss(self, now: float) -> float:
        every_s = self._churn.every_s
        return now + self._random.expovariate(1 / every_s) if every_s < inf else inf

    def _open(self, rank: int) -> None:
        self._owners[rank].open(rank)
        self._closed.discard(rank)

    def _lose(self, now: float) -> None:
        """Lose a random pipeline: its requests move to others, with the tokens they have."""
        self._next_loss = self._draw_loss(now)
        rank = self._random.randrange(len(self._owners))
        if rank in self._closed:
            return
        self.num_losses += 1
        self._closed.add(rank)
        heappush(self._opens, (now + self._churn.down_s, rank))
        if self._index:
            self._index.forget(rank)
        lost, self._views[rank] = self._owners[rank].close(rank)
        for each in lost:
            record = self.records[each.number]
            record.add(each)
            record.num_moves += 1
            self._route(each.number, now)
