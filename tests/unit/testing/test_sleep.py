from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_core.api import (
    BackendFailed,
    Draw,
    Drawn,
    Drop,
    Fork,
    LayerRange,
    Open,
    OutOfPages,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    Truncate,
)
from parallax_core.testing.sleep import SleepStage, describe_sleeper

ONE, TWO = SeqId(1), SeqId(2)
OPEN = Open(ONE, SequenceSpec(prompt_length=3, sampling=Sampling()))


def test_sleeper_sleeps_as_long_as_it_is_told() -> None:
    slept: list[float] = []
    stage = SleepStage(describe_sleeper(), lambda batch: 0.5 * len(batch.rows), slept.append)
    stage.edit([OPEN])
    result = stage.step(StageBatch((Row(ONE, 0, (7, 8, 255), (Draw(0), Draw(2, count=2))),))).wait()
    assert result.answers == (Drawn((8,)), Drawn((0, 0)))
    assert result.free == (1023,)
    assert slept == [0.5]


def test_sleeper_that_takes_steps_ahead_sleeps_when_its_results_are_waited_for() -> None:
    slept: list[float] = []
    stage = SleepStage(replace(describe_sleeper(), steps_ahead=1), lambda _: 1000.0, slept.append)
    stage.edit([OPEN])
    outputs = [stage.step(StageBatch((Row(ONE, start, (7,), (Draw(0),)),))) for start in range(2)]
    assert slept == []
    assert [output.wait().free for output in outputs] == [(1023,), (1023,)]
    assert [round(seconds, -2) for seconds in slept] == [1000, 2000]


def test_sleepers_hand_on_what_the_next_one_takes() -> None:
    first = SleepStage(describe_sleeper(LayerRange(0, 4)), lambda batch: 0.0)
    second = SleepStage(describe_sleeper(LayerRange(4, 8)), lambda batch: 0.0)
    row = Row(ONE, 0, (1, 2), (Draw(1),))
    for stage in (first, second):
        stage.edit([OPEN])
    handed = first.step(StageBatch((row,))).wait()
    assert handed.answers == ()
    assert second.step(StageBatch((row,), handed.tensors)).wait().answers == (Drawn((3,)),)


def test_sleeper_keeps_the_account_of_its_pages() -> None:
    pools = (PoolInfo(kind="full", page_size=2, num_pages=3),)
    stage = SleepStage(replace(describe_sleeper(), pools=pools), lambda batch: 0.0)
    stage.edit([OPEN])
    assert stage.step(StageBatch((Row(ONE, 0, (1, 2, 3)),))).wait().free == (1,)
    stage.edit([Fork(ONE, TWO, 3)])
    with pytest.raises(OutOfPages):
        stage.step(StageBatch((Row(TWO, 3, (1, 2)),)))
    stage.edit([Truncate(TWO, 2), Drop(ONE)])
    assert stage.step(StageBatch((Row(TWO, 2, (1, 2)),))).wait().free == (1,)


def test_closed_sleeper_is_no_use() -> None:
    stage = SleepStage(describe_sleeper(), lambda batch: 0.0)
    stage.close()
    stage.close()
    with pytest.raises(BackendFailed, match="closed"):
        stage.edit([OPEN])
