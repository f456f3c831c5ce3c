"""The policy held to the contract by Parallax's own kit, and to what it says of itself."""

from __future__ import annotations

import pytest

from parallax_core.api import PromptView, SchedulingView
from parallax_core.testing.scheduling import SchedulingConformance
from parallax_policy_cached.policy import CachedFirst


class TestCachedFirst(SchedulingConformance):
    policy = CachedFirst(patience_s=2.0)


def make_prompt(index: int, remaining: int, age_s: float = 0.0) -> PromptView:
    return PromptView(
        index=index,
        remaining=remaining,
        num_prompt=100,
        cached=100 - remaining,
        num_output=0,
        age_s=age_s,
        begun_s=0.0,
        priority=0,
        client=b"",
    )


def list_order(*prompts: PromptView) -> list[int]:
    view = SchedulingView(max_tokens=64, num_places=4, running=(), waiting=prompts)
    return [prompt for prompt, _ in CachedFirst(patience_s=2.0).order(view)]


def test_prompt_with_most_in_the_cache_comes_first() -> None:
    assert list_order(make_prompt(0, 100), make_prompt(1, 5), make_prompt(2, 50)) == [1, 2, 0]


def test_prompt_that_has_waited_for_long_comes_before_all() -> None:
    assert list_order(make_prompt(0, 100, 2.0), make_prompt(1, 5)) == [0, 1]


@pytest.mark.parametrize("patience_s", [-1.0, float("inf"), float("nan")])
def test_option_that_makes_no_sense_is_refused(patience_s: float) -> None:
    with pytest.raises(ValueError, match="patience_s"):
        CachedFirst(patience_s)
