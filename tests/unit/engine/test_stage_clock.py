"""Times of stages and links, from times that are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Row
from parallax_core.contracts.status import StepTime
from parallax_core.engine.head import Head
from parallax_core.engine.options import HeadOptions
from parallax_core.engine.stage_clock import MOST_IN_FLIGHT, RECENT, FinishedStep, StageClock, StepTimes
from parallax_core.engine.step_cost import measure_rows
from parallax_core.engine.step_limit import LEAST_S, TIMES
from tests.unit.engine.replica import TOY, Chain, Replica, decode, make_request, open_stages

ROWS = (Row(SeqId(0), 0, (1,)),)


def note(clock: StageClock, times: StepTimes, stage: int, seconds: float, now: float | None = None) -> None:
    times.note(stage, seconds)
    clock.note(times, stage, 1, now)


def run_step(clock: StageClock, round_trip_s: float, slowest_s: float) -> None:
    """A step that the slowest stage computed for so long, and the others not at all."""
    times = clock.depart(100.0, ROWS, 1)
    note(clock, times, 0, slowest_s)
    clock.arrive(times, 100.0 + round_trip_s)


def test_lone_step_shows_what_links_take() -> None:
    clock = StageClock(2)
    times = clock.depart(10.0, ROWS, 0)
    note(clock, times, 0, 0.25)
    note(clock, times, 1, 0.5)
    assert clock.hop_s is None
    clock.arrive(times, 10.9)
    assert clock.hop_s == pytest.approx((0.9 - 0.75) / 3)


def test_stage_may_say_how_long_it_took_after_the_answers_are_there() -> None:
    clock = StageClock(2)
    times = clock.depart(0.0, ROWS, 0)
    note(clock, times, 1, 0.5)
    clock.arrive(times, 1.3)
    assert clock.hop_s is None
    note(clock, times, 0, 0.5)
    assert clock.hop_s == pytest.approx(0.1)


def test_step_behind_another_says_nothing_of_links() -> None:
    clock = StageClock(1)
    times = clock.depart(0.0, ROWS, 1)
    note(clock, times, 0, 0.5)
    clock.arrive(times, 9.0)
    assert clock.hop_s is None
    assert clock.steps == [1]


def test_only_recent_steps_count() -> None:
    clock = StageClock(1)
    assert clock.step_time(0) is None
    for number in range(RECENT + 1):
        note(clock, clock.depart(0.0, ROWS, 1), 0, 100.0 if number == 0 else 1.0)
    assert clock.step_time(0) == StepTime(mean_s=1.0, median_s=1.0)


def test_limit_follows_the_steps_of_these_stages_only() -> None:
    clock = StageClock(2)
    note(clock, clock.depart(0.0, ROWS, 1), 1, 100.0)
    clock.restart()
    assert clock.limit_s(1, 1) == TIMES * 100.0
    assert clock.limit_s(0, 1) < 2 * LEAST_S
    clock.replace(2)
    assert clock.limit_s(1, 1) == clock.limit_s(0, 1)


def test_pipeline_begins_with_a_step_for_each_stage_and_one_on_its_way() -> None:
    assert [StageClock(count).most_in_flight for count in (1, 2, 3)] == [1, 3, 4]


def test_long_links_are_filled() -> None:
    clock = StageClock(3)
    run_step(clock, 0.260, 0.020)
    assert clock.most_in_flight == 13
    clock.restart()
    assert clock.most_in_flight == 4


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        ([(0.5, 0.020), (0.12, 0.020), (0.9, 0.020)], 6),  # the least round trip counts: the others have waited
        ([(0.260, 0.020), (0.260, 0.200), (0.260, 0.020)], 13),  # a stage that is slow once changes nothing
        ([(0.1, 0.020)] + [(0.2, 0.020)] * 40, 10),  # old round trips are forgotten
        ([(1.0, 0.0)], 4),  # stages that say nothing of their time
        ([(10.0, 0.001)], MOST_IN_FLIGHT),
    ],
)
def test_as_many_steps_are_in_flight_as_fit_into_a_round_trip(steps: list[tuple[float, float]], most: int) -> None:
    clock = StageClock(3)
    for round_trip_s, slowest_s in steps:
        run_step(clock, round_trip_s, slowest_s)
    assert clock.most_in_flight == most


def test_single_stage_has_one_step_at_a_time_and_those_it_takes_ahead() -> None:
    clock = StageClock(1)
    run_step(clock, 10.0, 0.001)
    assert clock.most_in_flight == 1
    clock.restart(steps_ahead=2)
    run_step(clock, 10.0, 0.001)
    assert clock.most_in_flight == 3


def run_turn(clock: StageClock, *, read_s: float, row_s: float, links_s: float) -> None:
    """Two steps at a time of four and of one decode, on stages that are equally fast."""
    for num_before, num_rows in ((0, 4), (1, 1)):
        seconds, times = read_s + num_rows * row_s, clock.depart(0.0, ROWS * num_rows, num_before)
        for stage in range(clock.num_stages):
            note(clock, times, stage, seconds)
        clock.arrive(times, clock.num_stages * seconds + links_s)


@pytest.mark.parametrize(
    ("read_s", "row_s", "links_s", "is_hiding"),
    [(0.03, 0.0001, 0.001, False), (0.002, 0.01, 0.05, True), (0.0001, 0.01, 0.004, True), (0.01, 0.01, 0, False)],
)
def test_further_step_beside_decodes_has_to_hide_more_of_the_links_than_it_reads(
    read_s: float, row_s: float, links_s: float, is_hiding: bool
) -> None:
    clock = StageClock(2)
    for _ in range(RECENT):
        run_turn(clock, read_s=read_s, row_s=row_s, links_s=links_s)
    two = [measure_rows(ROWS * 6)] * 2
    assert clock.may_depart(two, 12) is is_hiding
    assert clock.may_depart(two[:1], 12)
    assert not clock.may_depart(two * MOST_IN_FLIGHT, 12)


def test_further_step_departs_beside_a_prompt() -> None:
    clock = StageClock(2)
    for _ in range(RECENT):
        run_turn(clock, read_s=0.03, row_s=0.0001, links_s=0.0)
    prompt, decode_ = measure_rows([Row(SeqId(0), 0, (1,) * 9)]), measure_rows(ROWS)
    assert clock.may_depart([decode_, prompt], 12)
    assert not clock.may_depart([decode_, prompt, decode_], 12)


def test_links_are_measured_by_decodes_beside_which_no_step_is_surplus() -> None:
    clock = StageClock(2)
    for _ in range(RECENT):
        run_turn(clock, read_s=0.03, row_s=0.0001, links_s=0.0)
    for rows, num_before in ((ROWS, 2), ((Row(SeqId(0), 0, (1,) * 9),), 0)):
        for _ in range(RECENT):
            times = clock.depart(0.0, rows, num_before)
            note(clock, times, 0, 0.03)
            note(clock, times, 1, 0.03)
            clock.arrive(times, 9.0)
    assert not clock.may_depart([measure_rows(ROWS * 6)] * 2, 12)


@pytest.mark.parametrize(("crowding", "is_cut"), [(1.0, True), (1.3, True), (3.0, False)])
def test_lone_prompt_is_cut_if_stages_that_compute_at_once_take_less_than_one_by_one(
    crowding: float, is_cut: bool
) -> None:
    """Stages of one machine may share its processors; each piece but the first then takes longer."""
    clock = StageClock(3)
    piece = (Row(SeqId(0), 0, tuple(range(100))),)
    for num_before in (0, 1, 2, 3):
        times = clock.depart(100.0, piece, num_before)
        for stage in range(3):
            times.note(stage, 0.1 * (crowding if num_before else 1.0))
            clock.note(times, stage, 100, None)
        clock.arrive(times, 101.0)
    assert (clock.cut_prompt(600, 2048) < 600) == is_cut


def test_new_epoch_forgets_what_a_further_step_would_hide() -> None:
    clock, two = StageClock(2), [measure_rows(ROWS * 6)] * 2
    for _ in range(RECENT):
        run_turn(clock, read_s=0.0001, row_s=0.01, links_s=0.004)
    assert clock.may_depart(two, 12)
    clock.restart()
    assert not clock.may_depart(two, 12)


@pytest.mark.parametrize("ahead", [0, 2])
def test_single_stage_has_the_steps_that_it_takes_ahead(ahead: int) -> None:
    clock = StageClock(1)
    clock.restart(ahead)
    for num in range(4):
        assert clock.may_depart([measure_rows(ROWS)] * num, 8) is (num <= ahead)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_every_second_of_a_step_is_on_a_stage_or_on_the_way_to_one(stages: list[tuple[int, int]]) -> None:
    clock = StageClock(len(stages))
    times, now = clock.depart(5.0, ROWS, 0), 5.0
    for stage, (hop, seconds) in enumerate(stages):
        now += hop + seconds
        note(clock, times, stage, float(seconds), now)
    clock.arrive(times, now)
    assert times.split() == [*(float(seconds) for _, seconds in stages), *(float(hop) for hop, _ in stages), 0.0]


def test_way_to_a_stage_whose_report_is_late_is_part_of_the_next() -> None:
    clock = StageClock(2)
    times = clock.depart(0.0, ROWS, 0)
    note(clock, times, 1, 2.0, 6.0)
    clock.arrive(times, 6.0)
    assert times.split() == [0.0, 2.0, 0.0, 4.0, 0.0]
    note(clock, times, 0, 1.0, 6.5)
    assert times.split() == [1.0, 2.0, 0.0, 3.0, 0.0]


def test_head_measures_the_steps_it_plans() -> None:
    stages = open_stages(TOY, 2, num_pages=40, context=64)
    ticks = iter(range(100))
    options = HeadOptions(timer=lambda: float(next(ticks)))
    head, chain = Head([stage.info for stage in stages], decode, options), Chain(stages)
    head.accept(make_request([1, 2, 3], max_tokens=3), 0.0)
    now = 0.0
    while (step := head.plan(now)) is not None:
        results = chain.run(step)
        for stage, result in enumerate(results):
            now += 0.4 if step.batch.rows else 0.0
            head.confirm(stage, step.batch.step, result.free, 0.25, now)
        head.absorb(results[-1], now)
    assert head.stage_clock.tokens == [5, 5]
    assert head.stage_clock.steps == [3, 3]
    assert head.stage_clock.step_time(1) == StepTime(mean_s=0.25, median_s=0.25)
    assert head.stage_clock.hop_s == pytest.approx(0.1)
    finish = head.take_deltas()[-1][1].finish
    assert finish is not None
    timing = finish.timing
    assert timing is not None
    assert timing.stages_s == (0.75, 0.75)
    assert timing.hops_s == pytest.approx((0.45, 0.45))
    assert timing.prefill_s + timing.decode_s == pytest.approx(sum(timing.stages_s) + sum(timing.hops_s))
    assert timing.detokenize_s == 3.0  # one tick for each token


def test_report_that_comes_late_is_counted_to_its_request_once() -> None:
    replica = Replica(*open_stages(TOY, 2, num_pages=40, context=64))
    request = replica.ask([1, 2, 3], 2)
    step = replica.head.plan(0.0)
    assert step is not None
    first, last = replica.chain.run(step)
    replica.head.confirm(1, 1, last.free, 2.0, 6.0)
    replica.head.absorb(last, 6.0)
    replica.head.confirm(0, 1, first.free, 1.0, 6.5)
    replica.now = 6.5
    replica.run()
    finish = replica.deltas[request][-1].finish
    assert finish is not None
    assert finish.timing is not None
    assert finish.timing.stages_s == (1.0, 2.0)
    assert finish.timing.hops_s[1] == pytest.approx(3.0, abs=0.1)


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(1, 9), st.floats(0.001, 1), st.integers(0, 3)), max_size=40))
def test_steps_noted_at_once_teach_what_they_teach_one_by_one(
    num_stages: int, steps: list[tuple[int, float, int]]
) -> None:
    one, other, finished = StageClock(num_stages), StageClock(num_stages), list[FinishedStep]()
    for number, (num_rows, each_s, num_before) in enumerate(steps):
        rows, seconds = ROWS * num_rows, [each_s * (stage + 1) for stage in range(num_stages)]
        departed, returned = float(number), number + 8 * each_s
        times = one.depart(departed, rows, num_before)
        for stage, stage_s in enumerate(seconds):
            note(one, times, stage, stage_s)
        one.arrive(times, returned)
        finished.append(FinishedStep(measure_rows(rows), seconds, departed, returned, num_before))
    for first in range(0, len(finished), 7):
        other.note_finished(finished[first : first + 7])
    assert one.hop_s == other.hop_s
    assert (one.spread, one.most_in_flight) == (other.spread, other.most_in_flight)
    size = measure_rows(ROWS)
    assert one.costs.predict(size) == other.costs.predict(size)
    two = [size] * num_stages
    assert one.may_depart(two, 8) == other.may_depart(two, 8)
