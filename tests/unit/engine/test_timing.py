"""The times of one request, from the times of its steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.contracts.engine import Pause
from parallax_core.engine.stage_clock import StepTimes
from parallax_core.engine.timing import MOST_STEPS, Timeline


def make_step(departed: float, seconds: float, sampling_s: float) -> StepTimes:
    """A step of one stage, on the way for a second."""
    times = StepTimes(1, departed)
    times.note(0, seconds)
    times.returned = times.reported[0] = departed + 1.0 + seconds
    times.sampling_s = sampling_s
    return times


@given(st.lists(st.integers(1, 9), max_size=3 * MOST_STEPS), st.integers(1, 3))
def test_every_step_counts_once_whatever_the_answers_in_it(seconds: list[int], num_answers: int) -> None:
    timeline = Timeline(0.0)
    for number, took in enumerate(seconds):
        times = make_step(float(number), float(took), took / 4)
        begun = [timeline.begin(times) for _ in range(num_answers)]
        assert begun == [number == 0] + [False] * (num_answers - 1)
    timing = timeline.read()
    if not seconds:
        assert timing.stages_s == timing.hops_s == ()
        return
    assert timing.stages_s == (float(sum(seconds)),)
    assert timing.hops_s == (float(len(seconds)),)
    assert timing.sampling_s == sum(seconds) / 4
    assert len(timeline.steps) < MOST_STEPS


def test_step_without_answers_was_lost_and_takes_no_time() -> None:
    timeline = Timeline(0.0)
    timeline.begin(make_step(0.0, 2.0, 0.5))
    lost = make_step(5.0, 9.0, 0.0)
    lost.returned = None
    timeline.begin(lost)
    assert timeline.read().stages_s == (2.0,)


def test_phases_are_from_the_arrival_to_the_last_event() -> None:
    timeline = Timeline(100.0)
    assert timeline.begin(make_step(103.0, 2.0, 0.5))
    assert timeline.read().prefill_s == 0.0
    timeline.advance(110.0)
    timeline.advance(125.0)
    timing = timeline.read()
    assert (timing.queued_s, timing.prefill_s, timing.decode_s) == (3.0, 7.0, 15.0)
    assert (timing.stages_s, timing.hops_s, timing.sampling_s) == ((2.0,), (1.0,), 0.5)
    assert timeline.read() == timing, "what was read counts once"


def test_pauses_are_told_from_the_arrival_on_and_do_not_overlap() -> None:
    timeline = Timeline(100.0)
    timeline.resume(101.0)
    for lost, back in ((104.0, 106.0), (110.0, 113.0)):
        timeline.pause(lost)
        timeline.pause(lost + 1)
        timeline.resume(back)
        timeline.resume(back + 1)
    timing = timeline.read()
    assert timing.pauses == (Pause(4.0, 2.0), Pause(10.0, 3.0))
    assert (timing.recovery_s, timing.queued_s) == (5.0, 13.0)


def test_stages_of_pipelines_of_other_lengths_are_added_place_by_place() -> None:
    timeline = Timeline(0.0)
    for number, num_stages in enumerate((1, 3, 2)):
        times = StepTimes(num_stages, 10.0 * number)
        for stage in range(num_stages):
            times.note(stage, 1.0)
            times.reported[stage] = 10.0 * number + 1.5 * (stage + 1)
        times.returned = 10.0 * number + 1.5 * num_stages
        timeline.begin(times)
    timing = timeline.read()
    assert timing.stages_s == (3.0, 2.0, 1.0)
    assert len(timing.hops_s) == 3


def test_request_that_never_began_was_in_the_queue() -> None:
    timing = Timeline(1.0, latest=4.0).read()
    assert (timing.queued_s, timing.prefill_s, timing.stages_s) == (3.0, 0.0, ())
    assert timing.hops_s == pytest.approx(())
