from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from parallax_core.api import Epoch, LayerRange, StageInfo, StageLost
from parallax_core.node.balance import STEPS, Balanced, choose_layers, time_stages
from parallax_core.node.channel import Channel
from parallax_core.node.company import LEASE, Post
from parallax_core.node.crew import Crew
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.wire.messages import Result, Step

HALVES = (LayerRange(0, 4), LayerRange(4, 8))


def test_layers_go_to_the_stage_that_is_fast() -> None:
    assert choose_layers(HALVES, [1] * 8, [0.3, 0.1]) == (LayerRange(0, 2), LayerRange(2, 8))


def test_layers_stay_where_it_is_not_worth_moving_them() -> None:
    assert choose_layers(HALVES, [1] * 8, [0.105, 0.1]) is None


def sleeper(layers: LayerRange, seconds: float) -> SleepStage:
    return SleepStage(describe_sleeper(layers), lambda _: seconds)


async def test_stages_are_timed_by_their_own_clocks() -> None:
    crew = Crew([partial(sleeper, HALVES[0], 0.03), partial(sleeper, HALVES[1], 0.01)])
    await crew.open()
    try:
        slow, fast = await time_stages(crew.channels)
    finally:
        await crew.close()
    assert slow >= 0.03
    assert 0.01 <= fast < slow


async def test_stage_that_fails_while_it_is_timed_is_named() -> None:
    broken = FaultStage(sleeper(HALVES[1], 0.0), Fault("step", at=1))
    crew = Crew([partial(sleeper, HALVES[0], 0.0), lambda: broken])
    await crew.open()
    try:
        with pytest.raises(StageLost, match="node 'stage-1' could not decode a token"):
            await time_stages(crew.channels)
    finally:
        await crew.close()


class FakeTroop:
    """Stages of a crew that sleep as long as their layers are slow."""

    heals = True

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = rates
        self.layers: tuple[LayerRange, ...] = HALVES
        self.opened: list[tuple[LayerRange, ...]] = []
        self.crew: Crew | None = None
        self.channels: tuple[Channel, ...] = ()

    async def open(self) -> tuple[StageInfo, ...]:
        await self.close()
        self.opened.append(self.layers)
        self.crew = Crew(
            [partial(sleeper, each, len(each) * rate) for each, rate in zip(self.layers, self.rates, strict=True)]
        )
        infos = await self.crew.open()
        self.channels = self.crew.channels
        return infos

    def give(self, layers: Sequence[LayerRange]) -> None:
        self.layers = tuple(layers)

    async def explain(self, loss: StageLost) -> StageLost:
        return loss

    async def close(self) -> None:
        if self.crew is not None:
            await self.crew.close()

    def needs(self) -> str:
        return ""

    def posts(self) -> tuple[Post, ...]:
        return ()


async def test_slow_stage_gives_layers_away_and_both_begin_with_nothing_open() -> None:
    troop = FakeTroop((0.012, 0.004))
    company = Balanced(troop, [1] * 8)  # type: ignore[arg-type]
    try:
        infos = await company.open()
        assert [info.layers for info in infos] == [LayerRange(0, 2), LayerRange(2, 8)]
        await company.channels[0].send(Step(LEASE, Epoch(0), 1))
        first = await asyncio.wait_for(company.channels[1].receive(), 10)
        assert isinstance(first, Result)
        await company.open()
    finally:
        await company.close()
    assert len(troop.opened) == 3  # measured, moved; and not measured again
    assert STEPS > 3
