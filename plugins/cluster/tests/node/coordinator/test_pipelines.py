"""The pipelines of a coordinator, with fakes whose stages open when a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from parallax_cluster.layer_plan import Stages
from parallax_cluster.node.coordinator.pipelines import PlannedPipeline, PlannedPipelines
from parallax_core.contracts.engine import Health
from parallax_core.contracts.placement import PlacedStage
from parallax_core.contracts.stage import LayerRange


def place(nodes: str) -> Stages:
    return tuple(PlacedStage(node, LayerRange(index, index + 1)) for index, node in enumerate(nodes))


@dataclass
class FakeExecutor:
    planned: Stages = ()
    is_settled: bool = True

    def move(self, stages: Stages) -> None:
        self.planned, self.is_settled = stages, False


@dataclass
class FakeEngine:
    rank: int

    def health(self) -> Health:
        return Health(state="ready")


@dataclass
class FakeReplicas:
    ranks: set[int] = field(default_factory=set)

    def add(self, rank: int, engine: Any) -> None:
        self.ranks.add(rank)

    async def remove(self, rank: int) -> None:
        self.ranks.remove(rank)


class Bench:
    def __init__(self) -> None:
        self.executors: dict[int, FakeExecutor] = {}
        self.replicas = FakeReplicas({0})
        self.pipelines = PlannedPipelines(self.open)

    def open(self, rank: int) -> PlannedPipeline:
        self.executors[rank] = executor = FakeExecutor()
        return cast("PlannedPipeline", FakePipeline(FakeEngine(rank), executor))

    def advance(self, now: float) -> dict[int, str]:
        """Let time pass, and return the nodes that each pipeline is to have."""
        self.pipelines.advance(self.replicas, now)
        return {rank: "".join(stage.node for stage in stages) for rank, stages in self.pipelines.current.items()}

    def settle(self) -> None:
        for executor in self.executors.values():
            executor.is_settled = True


@dataclass
class FakePipeline:
    engine: FakeEngine
    executor: FakeExecutor

    @property
    def is_ready(self) -> bool:
        return self.executor.is_settled


async def test_pipelines_come_move_one_after_the_other_and_go() -> None:
    bench = Bench()
    bench.pipelines.begin({0: place("ab"), 1: place("cd")}, "abcd", 0.0)
    assert bench.pipelines.users == set("abcd")
    assert bench.advance(0.0) == {0: "ab", 1: "cd"}
    assert bench.replicas.ranks == {0, 1}
    bench.settle()
    bench.pipelines.begin({0: place("ba"), 1: place("dc")}, "abcd", 10.0)
    assert bench.advance(10.5) == {0: "ab", 1: "cd"}
    assert bench.advance(11.0) == {0: "ba", 1: "cd"}
    assert bench.advance(12.0) == {0: "ba", 1: "cd"}, "the first is not ready yet"
    bench.settle()
    assert bench.advance(13.0) == {0: "ba", 1: "dc"}
    assert bench.pipelines.pending == {1}
    bench.settle()
    bench.pipelines.begin({0: place("ba")}, "abcd", 20.0)
    assert bench.advance(21.0) == {0: "ba"}
    await bench.pipelines.close()
    assert [engine.rank for engine in cast("list[FakeEngine]", bench.pipelines.engines)] == [0]
    assert not bench.pipelines.pending


async def test_pipeline_that_lost_a_node_moves_at_once_and_waits_if_there_is_no_plan() -> None:
    bench = Bench()
    bench.pipelines.begin({0: place("ab"), 1: place("cd")}, "abcd", 0.0)
    bench.advance(0.0)
    bench.settle()
    bench.pipelines.begin({0: place("ae"), 1: place("dc")}, "acde", 10.0)
    assert bench.advance(10.0) == {0: "ae", 1: "cd"}
    bench.pipelines.stop_broken("acd")
    assert bench.advance(99.0) == {1: "cd"}, "what was planned with a node that is gone no longer holds"


async def test_pipeline_that_waits_and_is_not_planned_any_more_goes() -> None:
    bench = Bench()
    bench.pipelines.begin({0: place("ab"), 1: place("cd")}, "abcd", 0.0)
    bench.advance(0.0)
    bench.settle()
    bench.executors[0].planned = bench.executors[1].planned = ()  # neither can be opened
    assert bench.advance(1.0) == {}
    assert bench.replicas.ranks == {0, 1}
    bench.pipelines.begin({0: place("abc")}, "abcd", 2.0)
    assert bench.advance(2.0) == {0: "abc"}
    await bench.pipelines.close()
    assert [engine.rank for engine in cast("list[FakeEngine]", bench.pipelines.engines)] == [0]


async def test_links_and_nodes_are_those_of_pipelines_that_serve_and_of_others() -> None:
    bench = Bench()
    bench.pipelines.begin({0: place("abc"), 1: place("de")}, "abcde", 0.0)
    bench.advance(0.0)
    assert (bench.pipelines.hops, bench.pipelines.opening) == (set(), set("abcde"))
    bench.executors[0].is_settled = True
    assert (bench.pipelines.hops, bench.pipelines.opening) == ({("a", "b"), ("b", "c")}, set("de"))
    assert not bench.pipelines.are_free(place("fa"))
    assert bench.pipelines.are_free(place("fg"))
