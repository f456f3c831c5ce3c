from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from parallax_cluster.layer_plan import Stages
from parallax_cluster.node.coordinator.planned import PlannedExecutor
from parallax_core.api import LayerRange, PlacedStage, StageInfo
from parallax_core.api.node import EngineFailed
from tests.unit.node.cluster import soon

HERE, THERE = ((PlacedStage(node, LayerRange(0, 1)),) for node in ("here", "there"))


class Opening:
    """An executor that opens stages when a test says so."""

    def __init__(self) -> None:
        self.assigned: tuple[Any, ...] = ()
        self.begun: list[tuple[Any, ...]] = []
        """What each attempt was to open."""
        self.ended = 0
        """The attempts that were given up."""
        self.may_open = asyncio.Event()

    def assign(self, assigned: Any) -> None:
        self.assigned = tuple(assigned)

    async def open(self) -> tuple[StageInfo, ...]:
        self.begun.append(self.assigned)
        try:
            await self.may_open.wait()
        except asyncio.CancelledError:
            self.ended += 1
            raise
        return ()

    async def close(self) -> None:
        pass


class Bench:
    def __init__(self, stages: Stages = HERE) -> None:
        self.opening = Opening()
        self.planned = PlannedExecutor(cast("Any", self.opening), cast("Any", None), cast("Any", self.assign))
        self.planned.move(stages)
        self.task = asyncio.create_task(self.planned.open())

    @staticmethod
    def assign(stage: int, placed: PlacedStage) -> str:
        return f"{stage} {placed.node}"


async def test_pipeline_that_waits_for_its_nodes_takes_no_processor_time() -> None:
    bench = Bench()
    await asyncio.sleep(0)
    begun_s = time.thread_time()
    await asyncio.sleep(0.2)
    assert time.thread_time() - begun_s < 0.1
    bench.opening.may_open.set()
    await soon(bench.task)


async def test_stages_that_are_planned_while_others_open_are_opened_in_their_place() -> None:
    bench = Bench()
    await asyncio.sleep(0.01)
    bench.planned.move(THERE)
    await asyncio.sleep(0.01)
    assert (bench.opening.begun, bench.opening.ended) == ([("0 here",), ("0 there",)], 1)
    assert not bench.planned.is_settled
    bench.opening.may_open.set()
    await soon(bench.task)
    assert (bench.planned.is_settled, bench.planned.planned) == (True, THERE)


async def test_pipeline_that_ends_while_it_waits_for_a_plan_says_why_and_opens_nothing() -> None:
    bench = Bench(())
    await asyncio.sleep(0)
    bench.planned.fail("there is no model")
    with pytest.raises(EngineFailed, match="there is no model"):
        await soon(bench.task)
    assert bench.opening.begun == []


async def test_pipeline_that_is_closed_has_no_stages_and_nothing_assigned() -> None:
    bench = Bench()
    bench.opening.may_open.set()
    await soon(bench.task)
    assert bench.opening.assigned == ("0 here",)
    await bench.planned.close()
    assert not bench.planned.planned
    assert not bench.opening.assigned
