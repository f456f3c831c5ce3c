"""What a coordinator decides while a node becomes slow, second by second of a clock that is only a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.layer_plan import LayerPlan, LayerPlanner, Stages
from parallax_cluster.link_estimate import LinkEstimate, LinkSample
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.rebalancing.rollout import Rollout
from parallax_cluster.rebalancing.watch import SlowdownWatch
from parallax_cluster.step_time import StageTime, list_windows, weigh_rows
from parallax_core.api import Draw, Row, SeqId
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, PlacementProblem, ServingGoal
from tests.support.clusters import make_model, make_node

MODEL = make_model(8)
GOAL = ServingGoal(prompt_tokens=64, output_tokens=64, concurrency=8)
NODES = tuple(make_node(name, 5.5) for name in "abc")
"""Each has room for five of the eight layers."""
TICK_S = 0.1
Slowdown = Callable[[str, float], float]


@dataclass
class Timeline:
    """The decisions of a coordinator, over pipelines whose steps take what `StageTime` says, and more."""

    slowdown: Slowdown
    """How many times longer the steps of a node take at a time."""
    seed: int = 0
    cluster: ClusterProfile = field(default_factory=lambda: ClusterProfile(nodes=NODES))
    moves: list[tuple[float, dict[int, Stages]]] = field(default_factory=list)
    """When pipelines moved, and to which stages."""
    said: list[float] = field(default_factory=list)
    """When moves were announced."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.planner = LayerPlanner(policy=SearchPlacement(), model=MODEL, goal=GOAL)
        self.watch = SlowdownWatch(MODEL)
        self.current: dict[int, Stages] = {}
        self.rollout = Rollout({}, {}, (), 0.0)
        self.windows = list_windows(MODEL.layers)
        self.numbers = count(1)

    def plan(self, now: float) -> LayerPlan:
        plan = self.planner.plan(self.watch.follow(self.cluster, 0.0), self.current, has_begun=bool(self.current))
        self.rollout = Rollout(dict(self.current), plan.pipelines, (), now)
        if self.rollout.pending:
            self.said.append(now)
        return plan

    def run(self, seconds: float) -> None:
        self.plan(0.0)
        for tick in range(int(seconds / TICK_S)):
            now = tick * TICK_S
            for rank in self.rollout.advance(lambda rank: True, now):
                self.current[rank] = self.rollout.planned[rank]
                self.moves.append((now, dict(self.current)))
            if self.compute(now):
                assert self.watch.take_changes({stage.node for each in self.current.values() for stage in each}, now)
                self.plan(now)

    def compute(self, now: float) -> bool:
        """Compute a step on every stage; return whether a plan is due."""
        costs, is_due = CostModel(PlacementProblem(cluster=self.cluster, model=MODEL, goal=GOAL)), False
        size = self.random.choice((1, 2, 8, 64))
        rows = tuple(Row(SeqId(number), self.random.randrange(500), (7,), (Draw(0),)) for number in range(size))
        work = weigh_rows(rows, self.windows)
        for stages in self.current.values():
            for stage in stages:
                node = next(index for index, each in enumerate(self.cluster.nodes) if each.name == stage.node)
                seconds = StageTime(costs, node, stage.layers.start, stage.layers.stop).measure(work)
                seconds *= self.slowdown(stage.node, now) * self.random.lognormvariate(0, 0.1)
                is_due |= self.watch.note(stage, rows, seconds, now)
        return is_due

    def list_layers(self, node: str) -> int:
        return sum(len(stage.layers) for stages in self.current.values() for stage in stages if stage.node == node)


@settings(max_examples=3)
@given(st.integers(0, 2**32), st.floats(1.5, 20.0), st.floats(1.0, 60.0))
def test_node_that_stutters_for_twenty_seconds_moves_nothing(seed: int, times: float, begins: float) -> None:
    timeline = Timeline(lambda node, now: times if begins <= now < begins + 20 else 1.0, seed)
    timeline.run(120.0)
    [(at, _)] = timeline.moves
    assert at == 0.0


@settings(max_examples=3)
@given(st.integers(0, 2**32), st.floats(2.0, 20.0), st.floats(40.0, 100.0))
def test_node_twice_as_slow_for_long_has_fewer_layers_within_thirty_seconds(
    seed: int, times: float, begins: float
) -> None:
    timeline = Timeline(lambda node, now: times if now >= begins and node == victim else 1.0, seed)
    victim = ""
    timeline.run(1.0)
    first = dict(timeline.current)
    victim = first[0][0].node
    timeline = Timeline(timeline.slowdown, seed)
    timeline.run(begins + 31.0)
    (_, before), (moved, after) = timeline.moves
    assert before == first
    assert begins + 20.0 < moved < begins + 30.0
    assert timeline.said[-1] <= moved - 0.9, "it is said before"
    layers = [
        {stage.node: len(stage.layers) for stages in each.values() for stage in stages} for each in (before, after)
    ]
    assert layers[1].get(victim, 0) < layers[0][victim]


def test_all_nodes_slower_alike_moves_nothing() -> None:
    cluster = ClusterProfile(nodes=NODES[:2])
    timeline = Timeline(lambda node, now: 1.0 if now < 60 else 2.5, cluster=cluster)
    timeline.run(200.0)
    assert len(timeline.moves) == 1
    assert list(timeline.watch.slowdowns.values()) == [pytest.approx(2.5, rel=0.1)] * 2


def test_node_that_is_slow_every_other_minute_moves_layers_twice_at_most_in_half_an_hour() -> None:
    def slowdown(node: str, now: float) -> float:
        return 3.0 if node == "a" and now % 120 >= 60 else 1.0

    timeline = Timeline(slowdown)
    timeline.run(1800.0)
    assert len(timeline.moves) <= 3


def test_link_that_stutters_for_twenty_seconds_moves_nothing() -> None:
    """A node measures each of its links every ten seconds, and reports the median."""
    link, moves = LinkEstimate(), []
    watch, planner = SlowdownWatch(MODEL), LayerPlanner(policy=SearchPlacement(), model=MODEL, goal=GOAL)
    current: dict[int, Stages] = {}
    for now in range(0, 400, 10):
        is_stuttering = 200 <= now <= 220
        link = link.add(LinkSample(0.4 if is_stuttering else 0.002, 0.5 if is_stuttering else 0.004, 2**18))
        assert link.round_trip_s is not None
        assert link.bandwidth is not None
        found = LinkProfile(ends=("a", "b"), round_trip_s=link.round_trip_s, bandwidth=link.bandwidth)
        cluster = watch.follow(ClusterProfile(nodes=NODES, links=(found,)), 0.0)
        plan = planner.plan(cluster, current, has_begun=bool(current))
        moves += [now] if plan.pipelines != current else []
        current = dict(plan.pipelines)
    assert moves == [0]
