"""The policy held to the contract by Parallax's own kit, and to what it says of itself."""

from __future__ import annotations

import pytest

from parallax_core.api import QueueView
from parallax_core.testing.policy import BatchingConformance
from parallax_policy_rush.policy import Rush


class TestRush(BatchingConformance):
    policy = Rush(gap_s=0.01, most_s=0.05)
    bound_s = 0.05


def begin_step(arrivals: list[float], policy: Rush) -> tuple[float, int]:
    """Return when the first step begins, and of how many requests, if these arrive and nothing is in flight."""
    now = arrivals[0]
    while True:
        ready = [arrival for arrival in arrivals if arrival <= now]
        queue = QueueView(num_ready=len(ready), oldest_wait_s=now - arrivals[0], num_in_flight=0)
        wait = policy.wait_s(queue)
        if wait <= 0:
            return now, len(ready)
        now = min([now + wait, *(arrival for arrival in arrivals if arrival > now)])


def test_step_waits_while_requests_keep_coming() -> None:
    begun, size = begin_step([0.001 * number for number in range(12)], Rush(gap_s=0.002, most_s=1.0))
    assert size == 12
    assert begun == pytest.approx(0.024)


def test_request_that_comes_alone_is_hardly_held_up() -> None:
    assert begin_step([0.0, 0.1, 0.2], Rush(gap_s=0.002)) == (0.002, 1)


def test_rush_without_end_is_cut_off() -> None:
    begun, size = begin_step([0.0001 * number for number in range(10_000)], Rush(gap_s=0.002, most_s=0.03))
    assert begun == pytest.approx(0.03)
    assert 299 <= size <= 301


@pytest.mark.parametrize("options", [{"gap_s": -1.0}, {"gap_s": 2.0, "most_s": 1.0}, {"most_s": float("inf")}])
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="gap_s"):
        Rush(**options)
