from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.stage_step import StageStep, count_groups

SECONDS = st.floats(0, 1)
STEPS = st.builds(
    StageStep,
    decode_s=SECONDS,
    prompt_s=SECONDS,
    read_s=SECONDS,
    row_s=SECONDS,
    prompt_row_s=SECONDS,
    experts=st.lists(st.tuples(st.floats(0.1, 0.9), SECONDS), max_size=2).map(tuple),
    fixed_s=SECONDS,
)
STAGE = StageStep(decode_s=1e-4, prompt_s=1e-4, read_s=0.02, row_s=1e-4, prompt_row_s=0.0, experts=(), fixed_s=0.0)


def test_step_takes_the_longer_of_computing_and_reading() -> None:
    assert STAGE.measure(4, 0) == pytest.approx(0.0204)
    assert STAGE.measure(4, 300) == pytest.approx(0.0304)
    assert STAGE._replace(fixed_s=0.5).measure(4, 300) == pytest.approx(0.5304)


def test_step_reads_the_experts_that_its_tokens_are_expected_to_meet() -> None:
    stage = STAGE._replace(experts=((0.75, 1.0),), read_s=0.0, row_s=0.0)
    assert stage.measure(1, 0) == pytest.approx(0.25)
    assert stage.measure(1, 1) == pytest.approx(1 - 0.75**2)


@given(STEPS, st.floats(1, 64), st.floats(1, 2048), st.floats(1, 2048))
def test_three_steps_at_once_take_what_each_takes(
    stage: StageStep, decodes: float, prompt: float, apart: float
) -> None:
    each = stage.measure(decodes, 0.0), stage.measure(decodes, prompt), stage.measure(0.0, apart)
    assert stage.measure_three(decodes, prompt, apart) == pytest.approx(each)


@pytest.mark.parametrize(
    ("stages", "requests", "groups"),
    [(1, 8, [1]), (2, 9, [2, 3]), (2, 2, [2]), (4, 10, [4, 5]), (1, 1, [1]), (2, 3, [2, 3]), (3, 1, [1])],
)
def test_requests_share_a_step_for_each_stage_or_one_more(stages: int, requests: int, groups: list[int]) -> None:
    assert count_groups(stages, requests) == groups
