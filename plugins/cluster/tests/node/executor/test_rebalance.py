from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from parallax_cluster.node.executor.rebalance import (
    STEPS,
    RebalancingExecutor,
    time_stages,
)
from parallax_cluster.placement.layer_cost import LayerCosts
from parallax_core.api import LayerRange, StageInfo, StageLost
from parallax_core.base.errors import UsageError
from parallax_core.base.ids import Epoch
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import StageLocation
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.wire.membership import Join
from parallax_core.wire.messages import Result, Step

HALVES = (LayerRange(0, 4), LayerRange(4, 8))
GIB = 2**30
EVEN = LayerCosts((1,) * 8, (GIB,) * 8)


def join(host: str, memory: int) -> Join:
    return Join("inprocess://x", (), host, 0, memory=memory)


def sleeper(layers: LayerRange, seconds: float) -> SleepStage:
    return SleepStage(describe_sleeper(layers), lambda _: seconds)


async def test_stages_are_timed_by_their_own_clocks() -> None:
    executor = LocalExecutor([partial(sleeper, HALVES[0], 0.2), partial(sleeper, HALVES[1], 0.01)])
    await executor.open()
    try:
        slow, fast = await time_stages(executor.channels)
    finally:
        await executor.close()
    assert slow >= 0.2
    assert 0.01 <= fast < slow


async def test_stage_that_fails_while_it_is_timed_is_named() -> None:
    broken = FaultStage(sleeper(HALVES[1], 0.0), Fault("step", at=1))
    executor = LocalExecutor([partial(sleeper, HALVES[0], 0.0), lambda: broken])
    await executor.open()
    try:
        with pytest.raises(StageLost, match="node 'stage-1' could not decode a token"):
            await time_stages(executor.channels)
    finally:
        await executor.close()


class FakeExecutor:
    """Stages of a executor that sleep as long as their layers are slow."""

    most_failures = None

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = rates
        self.layers: tuple[LayerRange, ...] = HALVES
        self.opened: list[tuple[LayerRange, ...]] = []
        self.executor: LocalExecutor | None = None
        self.channels: tuple[Channel, ...] = ()
        self.memories = (0, 0)

    async def gather(self) -> None:
        """Everybody is here."""

    def joins(self) -> list[Join]:
        return [join(str(number), memory) for number, memory in enumerate(self.memories)]

    async def open(self) -> tuple[StageInfo, ...]:
        return await self.assemble()

    async def assemble(self) -> tuple[StageInfo, ...]:
        await self.close()
        self.opened.append(self.layers)
        self.executor = LocalExecutor(
            [partial(sleeper, each, len(each) * rate) for each, rate in zip(self.layers, self.rates, strict=True)]
        )
        infos = await self.executor.open()
        self.channels = self.executor.channels
        return infos

    def give(self, layers: Sequence[LayerRange]) -> None:
        self.layers = tuple(layers)

    async def explain(self, loss: StageLost) -> StageLost:
        return loss

    async def close(self) -> None:
        if self.executor is not None:
            await self.executor.close()

    def needs(self) -> str:
        return ""

    def locations(self) -> tuple[StageLocation, ...]:
        return (StageLocation(node="desk/1", backend="toy"),)


async def test_slow_stage_gives_layers_away_and_both_begin_with_nothing_open() -> None:
    inner = FakeExecutor((0.012, 0.004))
    executor = RebalancingExecutor(inner, EVEN)  # type: ignore[arg-type]
    try:
        infos = await executor.open()
        assert [info.layers for info in infos] == [LayerRange(0, 2), LayerRange(2, 8)]
        await executor.channels[0].send(Step(Epoch(0), 1))
        first = await asyncio.wait_for(executor.channels[1].receive(), 10)
        assert isinstance(first, Result)
        await executor.open()
    finally:
        await executor.close()
    assert executor.locations() == inner.locations()
    assert len(inner.opened) == 3  # measured, moved; and not measured again
    assert STEPS > 3


async def test_node_with_little_memory_is_never_given_more_than_it_holds() -> None:
    inner = FakeExecutor((0.012, 0.004))
    inner.memories = (100 * GIB, 4 * GIB)
    executor = RebalancingExecutor(inner, EVEN)  # type: ignore[arg-type]
    try:
        infos = await executor.open()
    finally:
        await executor.close()
    assert [info.layers for info in infos] == [LayerRange(0, 5), LayerRange(5, 8)]
    assert inner.opened == [(LayerRange(0, 5), LayerRange(5, 8))] * 2  # it is fast, and could hold no more


async def test_model_that_does_not_fit_is_refused_before_anything_is_loaded() -> None:
    inner = FakeExecutor((0.0, 0.0))
    inner.memories = (4 * GIB, 4 * GIB)
    with pytest.raises(UsageError, match="the model takes"):
        await RebalancingExecutor(inner, EVEN).open()  # type: ignore[arg-type]
    assert inner.opened == []
