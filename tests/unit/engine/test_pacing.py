"""Prompts beside running answers take only so much of a step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_core.engine.pacing import GROWTH_S, RATIO, Pacer, PromptBudget, StreamLoad
from parallax_core.engine.stage_clock import StageClock
from parallax_core.engine.step_cost import StepCosts, StepSize
from tests.unit.engine.timed import Law, TimedPipeline, make_law

LAW = make_law()


def run_mixed(pipeline: TimedPipeline, num: int = 24, every_s: float = 0.4) -> None:
    """Have requests arrive while the answers to others are computed."""
    for number in range(num):
        pipeline.ask(200 + 40 * (number % 3), 40 + 10 * (number % 4))
        pipeline.run(pipeline.now + every_s)
    pipeline.run()


def rank(gaps: list[float], share: float) -> float:
    return gaps[int(share * (len(gaps) - 1))]


def test_times_between_tokens_are_even_by_default() -> None:
    even, any_time = TimedPipeline([LAW]), TimedPipeline([LAW], math.inf)
    for pipeline in (even, any_time):
        run_mixed(pipeline)
    assert rank(even.gaps(), 0.99) <= 1.5 * rank(even.gaps(), 0.5)
    assert rank(any_time.gaps(), 0.99) > 4 * rank(any_time.gaps(), 0.5)
    assert even.now < 1.15 * any_time.now


@pytest.mark.parametrize("num_stages", [2, 3])
def test_times_between_tokens_are_even_in_pipelines(num_stages: int) -> None:
    even, any_time = TimedPipeline([LAW] * num_stages), TimedPipeline([LAW] * num_stages, math.inf)
    for pipeline in (even, any_time):
        run_mixed(pipeline, every_s=0.6)
    assert rank(even.gaps(), 0.98) <= 1.7 * rank(even.gaps(), 0.5)
    assert rank(any_time.gaps(), 0.98) > 2 * rank(any_time.gaps(), 0.5)
    assert even.now < 1.15 * any_time.now


def test_target_limits_the_time_between_tokens() -> None:
    pipeline = TimedPipeline([LAW], 0.1)
    stream = pipeline.ask(10, 300)
    pipeline.run(1.0)
    for _ in range(10):
        pipeline.ask(500, 1)
    pipeline.run()
    longer = [gap for gap in pipeline.gaps(stream) if gap > 1.01 * LAW(StepSize(1))]
    assert 0.09 < rank(longer, 0.5) <= longer[-1] < 0.105


def test_prompts_progress_in_each_step_whatever_the_target() -> None:
    pipeline = TimedPipeline([LAW], 1e-6)
    pipeline.ask(10, 400)
    pipeline.run(0.5)
    prompt, begun = pipeline.ask(150, 1), len(pipeline.steps)
    pipeline.run()
    beside = [size for at, size in pipeline.steps[begun:] if at < pipeline.times[prompt][0]]
    assert all(size.num_prompt + size.num_decodes > 1 for size in beside)
    assert 0.01 < sum(size.num_prompt for size in beside) / 150 * 0.075 / (len(beside) * LAW(StepSize(1))) < 0.2


def test_prompts_alone_are_not_limited() -> None:
    pipeline = TimedPipeline([LAW])
    run_mixed(pipeline, 3)
    for _ in range(4):
        pipeline.ask(500, 1)
    begun = len(pipeline.steps)
    pipeline.run()
    assert [size.num_prompt for _, size in pipeline.steps[begun:]] == [512, 512, 512, 464]


def test_many_prompts_at_once_make_steps_long_from_the_start_and_even() -> None:
    """Prompts are more than half of the work; without a limit, the first answers would wait for all of them."""
    even, any_time = TimedPipeline([LAW]), TimedPipeline([LAW], math.inf)
    for pipeline in (even, any_time):
        for _ in range(32):
            pipeline.ask(200, 64)
        pipeline.run()
    assert rank(even.gaps(), 0.99) <= 1.7 * rank(even.gaps(), 0.5)
    assert even.now < 1.2 * any_time.now


def test_prompts_that_wait_get_a_larger_share() -> None:
    """Prompts arrive nearly as fast as they could be computed alone: with a fixed ratio, ever more would wait."""
    pipeline = TimedPipeline([make_law(prompt_s=0.002)])
    stream = pipeline.ask(10, 90_000)
    for _ in range(60):
        pipeline.ask(400, 1)
        pipeline.run(pipeline.now + 1.25)
    waits = [times[0] - pipeline.arrived[each] for each, times in pipeline.times.items() if times]
    assert len(waits) > 55
    assert max(waits) < 12
    assert pipeline.gaps(stream)[-1] < 8 * LAW(StepSize(1))


def test_share_grows_no_further_while_the_process_is_stopped() -> None:
    clock = StageClock(1)
    clock.costs.note(StepSize(1), 0.1)

    def find_budget(gap_s: float) -> float:
        pacer = Pacer(clock)
        for now in (0.0, gap_s):
            pacer.note(PromptBudget(clock.costs, 0.0, 0.0), 1, is_short=True, now=now)
        return pacer.make_budget(StepSize(1), StreamLoad(num_begun=1, is_in_flight=False, num_present=2)).seconds

    assert find_budget(1.0) < find_budget(GROWTH_S) == find_budget(1e6)


def test_no_prompt_comes_between_the_decodes_of_busy_stages() -> None:
    pipeline = TimedPipeline([LAW] * 2)
    for _ in range(8):
        pipeline.ask(10, 100)
    pipeline.run(1.0)
    pipeline.ask(400, 10)
    begun = len(pipeline.steps)
    pipeline.run()
    assert [size for _, size in pipeline.steps[begun:] if size.num_prompt and not size.num_decodes] == []


def test_prompts_use_the_stages_that_a_single_answer_leaves_idle() -> None:
    law = make_law(fixed=0.005, decode_s=0.005)
    pipeline = TimedPipeline([law] * 3)
    stream = pipeline.ask(10, 400)
    pipeline.run(1.0)
    pipeline.ask(400, 1)
    begun = len(pipeline.steps)
    pipeline.run()
    assert any(size.num_prompt and not size.num_decodes for _, size in pipeline.steps[begun:])
    assert rank(pipeline.gaps(stream), 0.98) < 1.1 * RATIO * 3 * law(StepSize(2))


LAWS = st.builds(
    make_law,
    fixed=st.floats(0, 0.1),
    decode_s=st.floats(0.0001, 0.01),
    prompt_s=st.floats(0, 0.01),
    context_s=st.floats(0, 1e-5),
)
REQUESTS = st.lists(st.tuples(st.integers(1, 900), st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=12)


@settings(max_examples=40)
@given(st.lists(LAWS, min_size=1, max_size=3), REQUESTS, st.sampled_from([None, 0.0001, 0.05, math.inf]))
def test_every_request_ends_and_the_same_times_give_the_same_steps(
    laws: list[Law], requests: list[tuple[int, int, float]], target_s: float | None
) -> None:
    runs = []
    for _ in range(2):
        pipeline = TimedPipeline(laws, target_s)
        for num_prompt, num_output, gap_s in requests:
            pipeline.ask(num_prompt, num_output)
            pipeline.run(pipeline.now + gap_s)
        pipeline.run()
        runs.append(pipeline)
    assert [len(times) for times in runs[0].times.values()] == [num_output for _, num_output, _ in requests]
    assert runs[0].steps == runs[1].steps


@given(st.floats(0.001, 1), st.integers(0, 5000), st.lists(st.integers(1, 500), max_size=8))
def test_budget_is_not_exceeded_by_more_than_a_token(seconds: float, start: int, counts: list[int]) -> None:
    costs, law = StepCosts(), make_law(context_s=1e-7)
    for prompt in (0, 64, 256, 0, 128):
        size = StepSize(4, 400, prompt, prompt * 200.0)
        costs.note(size, law(size))
    budget = PromptBudget(costs, seconds, 1000)
    taken = 0.0
    for count in counts:
        if fitting := budget.limit(start, count):
            budget.take(start, fitting)
            taken += costs.predict_prompt(start, fitting)
    assert taken <= seconds + costs.predict_prompt(start, 2)
