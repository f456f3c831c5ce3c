"""Simulates one pipeline: the serving head decides each step; stages and links take predicted times."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple, Protocol

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.step_time import StageTime, list_windows, weigh_rows
from parallax_core.api import (
    Draw,
    Drawn,
    LayerRange,
    PoolInfo,
    PoolKind,
    Request,
    RequestId,
    Sampling,
    StageInfo,
    StageResult,
)
from parallax_core.api.simulation import Head, HeadOptions, PlannedStep
from parallax_simulate.step_path import Passage, StepPath
from parallax_simulate.trace import Arrival
from parallax_stage_tools.pools import Room, plan_pools

VOCAB_SIZE = 2**31 - 1
OWN_TOKENS = 2**30 - 2**25
"""Prompts have tokens from here on that no other prompt has at the same place."""
STRIDE = 8191
"""The distance of the first tokens of two prompts."""
BATCH_TOKENS = 2048
"""The most tokens of a step, as backends have it by default."""


class DrawnTokens(NamedTuple):
    """Tokens of a request that arrived at the head."""

    number: int
    """Of the request."""
    num_tokens: int
    at: float
    is_over: bool


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request as a pipeline gets it."""

    number: int
    arrival: Arrival
    num_delivered: int = 0
    """The tokens of its answer that another pipeline gave."""

    def make_request(self) -> Request:
        """Return the request of the engine; prompts of one group share the first tokens, and no others."""
        arrival, own = self.arrival, OWN_TOKENS + self.number * STRIDE % OWN_TOKENS
        group = arrival.group * STRIDE % OWN_TOKENS
        prompt = (
            *range(group, group + arrival.shared_tokens),
            *range(own, own + arrival.prompt_tokens - arrival.shared_tokens),
        )
        return Request(
            id=RequestId(str(self.number)),
            prompt=prompt,
            max_tokens=arrival.output_tokens,
            sampling=Sampling(),
            delivered=((0,) * self.num_delivered,) if self.num_delivered else (),
        )


class SimulatedPipeline(Protocol):
    """A pipeline in virtual time."""

    next_at: float
    """When `advance` is to be called next; infinity: after the next request."""
    settle_at: float
    """When `settle` will have tokens that `advance` has not told; infinity: not before its next call."""
    busy_s: list[float]
    """Seconds that each stage has computed."""

    def settle(self, now: float) -> list[DrawnTokens]:
        """Return the tokens that came before ``now`` and have not been told."""

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Accept a request; raises Overloaded if too many wait."""

    def advance(self, now: float) -> list[DrawnTokens]:
        """Advance the time to ``now``, and return the tokens of that time."""


class PipelineModel:
    """The stages and links of a pipeline, with their times."""

    def __init__(
        self, costs: CostModel, order: Sequence[int], cuts: Sequence[int], slow: Sequence[float] | None = None
    ) -> None:
        """Describe a pipeline.

        Args:
            costs: of the problem.
            order: the nodes of its stages.
            cuts: the first layer of each stage, and the number of layers; shape [stages + 1].
            slow: how many times slower than its profile each node of the problem is; None: none is.
        """
        self.costs = costs
        self.order, self.cuts = tuple(order), tuple(pairwise(cuts))
        self.stages = [
            StageTime(costs, node, *cut, slow[node] if slow else 1.0)
            for node, cut in zip(order, self.cuts, strict=True)
        ]
        self.windows = list_windows(costs.layers)
        links = [costs.find_link(*ends) for ends in pairwise(order)]
        self.ways_s = [0.0, *(link.round_trip_s / 2 for link in links)]
        crossed = map(costs.problem.model.cross, cuts[1:-1])
        self.copy_s = [0.0, *(size / link.bandwidth for size, link in zip(crossed, links, strict=True))]
        self.back_s = costs.find_link(order[-1], order[0]).round_trip_s / 2 if len(order) > 1 else 0.0
        if costs.problem.cluster.head:
            self.ways_s[0] = costs.find_head_link(order[0]).round_trip_s / 2
            self.back_s = costs.find_head_link(order[-1]).round_trip_s / 2

    def make_infos(self, context_length: int) -> list[StageInfo]:
        """Return the stages as a head sees them, with the page pools that their memory holds."""
        return [self._make_info(stage, context_length) for stage in range(len(self.stages))]

    def _make_info(self, stage: int, context_length: int) -> StageInfo:
        costs, (start, stop) = self.costs, self.cuts[stage]
        used = costs.measure_weights(start, stop)
        free = (self.stages[stage].speed.memory - used) * costs.goal.memory_fraction
        return StageInfo(
            layers=LayerRange(start, stop),
            num_layers=costs.num_layers,
            vocab_size=VOCAB_SIZE,
            context_length=context_length,
            max_batch_tokens=BATCH_TOKENS,
            pools=self._make_pools(start, stop, Room(free, context_length, BATCH_TOKENS)),
            device=costs.nodes[self.order[stage]].device.name,
            dtype="bfloat16",
            weight_bytes=int(used),
            weights_version="simulated",
        )

    def _make_pools(self, start: int, stop: int, room: Room) -> tuple[PoolInfo, ...]:
        sizes: dict[tuple[PoolKind, int], int] = {}
        for layer in self.costs.layers[start:stop]:
            kind: PoolKind = "window" if layer.window else "full"
            if layer.kv:
                sizes[kind, layer.window] = sizes.get((kind, layer.window), 0) + layer.kv
            if layer.state:
                sizes["state", 0] = sizes.get(("state", 0), 0) + layer.state
        return plan_pools(sizes or {("full", 0): 1}, room)


class ExactPipeline:
    """Every step is planned and absorbed by a `Head`, as `PipelineDriver` does it."""

    def __init__(self, model: PipelineModel, context_length: int, options: HeadOptions | None = None) -> None:
        self._model = model
        self._head = Head(model.make_infos(context_length), _write, options)
        self._flights: deque[tuple[PlannedStep, Passage]] = deque()
        self._path = StepPath(model)
        self.busy_s = self._path.busy_s
        self.next_at = self.settle_at = inf

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        return self._head.max_length

    def settle(self, now: float) -> list[DrawnTokens]:
        """Return nothing: `advance` tells of every step when it ends."""
        del now
        return []

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Accept a request, which the next `advance` plans."""
        self._head.accept(request.make_request(), now)
        self.next_at = now

    def advance(self, now: float) -> list[DrawnTokens]:
        """Absorb the results that are there, and plan steps."""
        head, flights = self._head, self._flights
        while flights and flights[0][1].returned <= now:
            self._absorb(*flights.popleft())
        while (step := head.plan(now)) is not None:
            work = weigh_rows(step.batch.rows, self._model.windows)
            flights.append((step, self._path.depart(work, now)))
        hold_s = head.hold_s(now)
        self.next_at = min(flights[0][1].returned if flights else inf, now + hold_s if hold_s > 0 else inf)
        return [
            DrawnTokens(int(name), len(delta.tokens), now, delta.finish is not None)
            for name, delta in head.take_deltas()
        ]

    def _absorb(self, step: PlannedStep, passage: Passage) -> None:
        back_s = self._model.back_s
        for stage, (seconds, computed) in enumerate(zip(passage.seconds, passage.computed, strict=True)):
            self._head.confirm(stage, step.batch.step, (), seconds, computed + back_s)
        draws = [output for row in step.batch.rows for output in row.outputs if isinstance(output, Draw)]
        answers = tuple(Drawn((0,) * draw.count) for draw in draws)
        self._head.absorb(StageResult(answers), passage.returned)


def _write(tokens: Sequence[int]) -> str:
    return "x" * len(tokens)
