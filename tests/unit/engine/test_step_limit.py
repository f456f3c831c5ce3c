from __future__ import annotations

import pytest

from parallax_core.engine.step_limit import LEAST_S, RECENT, STRETCH, TIMES, StepLimit


def test_limit_is_many_times_the_longest_recent_step_of_the_size() -> None:
    limit = StepLimit()
    for seconds in (1.0, 9.0, 2.0):
        limit.note(100, seconds)
    assert limit.find(100) == limit.find(64) == limit.find(127) == TIMES * 9.0


def test_limit_is_never_short() -> None:
    limit = StepLimit()
    limit.note(1, 0.001)
    assert limit.find(1) == LEAST_S


def test_steps_of_long_ago_are_forgotten() -> None:
    limit = StepLimit()
    limit.note(8, 1000.0)
    for _ in range(RECENT):
        limit.note(8, 5.0)
    assert limit.find(8) == TIMES * 5.0


@pytest.mark.parametrize(("num_tokens", "factor"), [(1, TIMES), (8, TIMES), (16, TIMES), (4096, STRETCH * 512)])
def test_limit_of_a_size_not_seen_follows_the_next_smaller_one(num_tokens: int, factor: int) -> None:
    limit = StepLimit()
    limit.note(8, 10.0)
    assert limit.find(num_tokens) == 10.0 * factor


def test_first_step_has_time_for_each_of_its_tokens() -> None:
    assert StepLimit().find(4096) > StepLimit().find(1) >= LEAST_S


def test_typical_step_of_a_size_is_not_its_first_one() -> None:
    limit = StepLimit()
    for num_tokens, seconds in ((64, 9.0), (64, 0.5), (1, 0.1), (70, 0.6)):
        limit.note(num_tokens, seconds)
    assert limit.list_typical() == [(1, 0.1), (70, 0.6)]
    for _ in range(RECENT):
        limit.note(64, 0.4)
    assert limit.list_typical() == [(1, 0.1), (64, 0.4)], "it is of late"
