"""Times of stages and links, from times that are given."""

from __future__ import annotations

import pytest

from parallax_core.contracts.status import StepTime
from parallax_core.engine.head import Head
from parallax_core.engine.stage_clock import RECENT, StageClock
from tests.unit.engine.replica import TOY, Chain, decode, make_request, open_stages


def test_lone_step_shows_what_links_take() -> None:
    pace = StageClock(2)
    pace.depart(1, now=10.0)
    pace.note(0, 1, num_tokens=3, seconds=0.25)
    pace.note(1, 1, num_tokens=3, seconds=0.5)
    assert pace.hop_s is None
    pace.arrive(1, now=10.9)
    assert pace.hop_s == pytest.approx((0.9 - 0.75) / 3)


def test_stage_may_say_how_long_it_took_after_the_answers_are_there() -> None:
    pace = StageClock(2)
    pace.depart(1, now=0.0)
    pace.note(1, 1, num_tokens=1, seconds=0.5)
    pace.arrive(1, now=1.3)
    assert pace.hop_s is None
    pace.note(0, 1, num_tokens=1, seconds=0.5)
    assert pace.hop_s == pytest.approx(0.1)


def test_step_behind_another_says_nothing_of_links() -> None:
    pace = StageClock(1)
    pace.depart(1, now=0.0)
    pace.note(0, 2, num_tokens=1, seconds=0.5)
    pace.arrive(2, now=9.0)
    assert pace.hop_s is None
    assert pace.steps == [1]


def test_new_epoch_forgets_the_step_under_way_and_keeps_the_counts() -> None:
    pace = StageClock(1)
    pace.note(0, 7, num_tokens=5, seconds=0.5)
    pace.depart(8, now=0.0)
    pace.restart()
    pace.note(0, 8, num_tokens=5, seconds=0.25)
    pace.arrive(8, now=9.0)
    assert (pace.hop_s, pace.steps, pace.tokens) == (None, [2], [10])


def test_only_recent_steps_count() -> None:
    pace = StageClock(1)
    assert pace.step_time(0) is None
    for number in range(RECENT + 1):
        pace.note(0, number, num_tokens=1, seconds=100.0 if number == 0 else 1.0)
    assert pace.step_time(0) == StepTime(mean_s=1.0, median_s=1.0)


def test_head_measures_the_steps_it_plans() -> None:
    stages = open_stages(TOY, 2, num_pages=40, context=64)
    head, chain = Head([stage.info for stage in stages], decode), Chain(stages)
    head.accept(make_request([1, 2, 3], max_tokens=3), 0.0)
    now = 0.0
    while (step := head.plan(now)) is not None:
        results = chain.run(step)
        for stage, result in enumerate(results):
            head.confirm(stage, step.batch.step, result.free, 0.25)
        if step.batch.rows:
            now += 0.8
        head.absorb(results[-1], now)
    assert head.pace.tokens == [5, 5]
    assert head.pace.steps == [3, 3]
    assert head.pace.step_time(1) == StepTime(mean_s=0.25, median_s=0.25)
    assert head.pace.hop_s == pytest.approx(0.1)
