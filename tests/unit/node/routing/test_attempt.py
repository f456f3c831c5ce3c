from __future__ import annotations

from typing import Any

import pytest

from parallax_core.base.errors import RequestTimeout
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Finish, Request
from parallax_core.contracts.policy import ArrivalView
from parallax_core.contracts.sample import Sampling
from parallax_core.engine.sequence import AGEING_S
from parallax_core.engine.timing import Timeline
from parallax_core.node.routing.attempt import MOST_MOVES, RoutingAttempt
from parallax_core.node.routing.failover import RequestProgress

ARRIVED = 100.0


def make(number: int = 0, arrived: float = ARRIVED, **given: Any) -> RoutingAttempt:
    fields = {"id": RequestId("1"), "prompt": (1, 2, 3), "max_tokens": 4, "sampling": Sampling(), "n": 2, **given}
    request = Request(**fields)
    arrival = ArrivalView(number=number, num_prompt=3, max_output=8)
    return RoutingAttempt(
        request=request, arrival=arrival, keys=(), progress=RequestProgress(request, Timeline(arrived))
    )


def give(attempt: RoutingAttempt, *tokens: int, index: int = 0, ended: Any = None) -> None:
    attempt.progress.note(Delta(tokens=tokens, index=index, ended=ended), lambda: ARRIVED + 1)


def test_request_may_move_so_often_in_a_row_and_again_with_every_token() -> None:
    attempt = make()
    assert [attempt.may_move() for _ in range(MOST_MOVES + 1)] == [True] * MOST_MOVES + [False]
    give(attempt, 7)
    assert [attempt.may_move() for _ in range(MOST_MOVES + 1)] == [True] * MOST_MOVES + [False]


def test_request_moves_with_the_time_it_has_waited_and_the_tokens_it_has() -> None:
    attempt = make(waited_s=2.0)
    first = attempt.make_request(ARRIVED + 3)
    assert (first.waited_s, first.delivered, first.ended) == (5.0, (), frozenset())
    give(attempt, 7, 8)
    give(attempt, 9, index=1, ended="stop")
    moved = attempt.make_request(ARRIVED + 3)
    assert (moved.delivered, moved.ended) == (((7, 8), (9,)), frozenset({1}))
    assert moved.prompt == (1, 2, 3)


@pytest.mark.parametrize(("waited_s", "now", "is_over"), [(0.0, 9.9, False), (0.0, 10.0, True), (4.0, 6.0, True)])
def test_request_whose_time_is_over_does_not_move(waited_s: float, now: float, is_over: bool) -> None:
    attempt = make(timeout_s=10.0, waited_s=waited_s)
    if not is_over:
        assert attempt.make_request(ARRIVED + now).timeout_s == 10.0
        return
    with pytest.raises(RequestTimeout, match="timed out after 10 seconds"):
        attempt.make_request(ARRIVED + now)


def test_most_urgent_request_moves_first_and_then_the_one_that_has_waited_longest() -> None:
    usual = make(number=5)
    assert make(number=4).rank < usual.rank < make(number=6).rank
    assert make(number=9, arrived=ARRIVED - 1).rank < usual.rank
    assert make(number=9, waited_s=1.0).rank < usual.rank
    assert make(number=9, priority=-1, arrived=ARRIVED + AGEING_S - 1).rank < usual.rank
    assert make(number=0, priority=-1, arrived=ARRIVED + AGEING_S + 1).rank > usual.rank


def test_policy_sees_delivered_tokens_as_part_of_the_prompt() -> None:
    attempt = make()
    assert attempt.view(attempt.request) is attempt.arrival
    give(attempt, 7, 8)
    give(attempt, 9, index=1)
    view = attempt.view(attempt.make_request(ARRIVED))
    assert (view.number, view.num_prompt, view.max_output) == (0, 6, 5)
    give(attempt, *range(20))
    assert attempt.view(attempt.make_request(ARRIVED)).max_output == 0


def test_request_that_times_out_has_used_what_it_got() -> None:
    attempt = make()
    give(attempt, 7, 8)
    expected = Finish(reason="timeout", prompt_tokens=3, output_tokens=2, message="too late")
    assert attempt.time_out("too late") == expected
