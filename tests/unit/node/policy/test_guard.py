from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import (
    ArrivalView,
    Holder,
    PromptShare,
    PromptView,
    QueueView,
    ReplicaView,
    SchedulingView,
)
from parallax_core.node.policy.guard import MOST_SHOWN, BatchingGuard, PreemptionGuard, RoutingGuard, SchedulingGuard

QUEUE = QueueView(num_ready=1, oldest_wait_s=0.0, num_in_flight=0)
ARRIVAL = ArrivalView(number=0, num_prompt=4, max_output=4)
REPLICAS = [ReplicaView(rank=rank, pending_tokens=10 - rank, num_requests=1, cached_tokens=0) for rank in (2, 5)]
HOLDERS = [Holder(id=RequestId(name), priority=0, arrived=arrived, num_tokens=1) for arrived, name in enumerate("ab")]


def see(index: int, remaining: int) -> PromptView:
    given = {"num_prompt": 9, "cached": 0, "num_output": 0, "age_s": 0.0, "begun_s": 0.0, "priority": 0}
    return PromptView(index=index, remaining=remaining, client=b"", **given)  # type: ignore[arg-type]


VIEW = SchedulingView(max_tokens=8, num_places=1, running=(see(0, 3),), waiting=(see(1, 5),))


class Odd:
    """A policy of every kind that answers what it is told to, or raises it."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __repr__(self) -> str:
        return "Odd()"

    def wait_s(self, *_: object) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    choose = order = wait_s


@pytest.mark.parametrize("answer", [0, 0.0, 2.5, math.inf])
def test_wait_is_any_number_of_seconds(answer: float, caplog: pytest.LogCaptureFixture) -> None:
    guard = BatchingGuard(Odd(answer))
    assert guard.wait_s(QUEUE) == answer
    assert (guard.is_faulty, caplog.messages) == (False, [])


@pytest.mark.parametrize("answer", [-0.1, math.nan, None, "1", [0.5], ZeroDivisionError("why"), SystemExit(3)])
def test_step_begins_at_once_where_the_policy_has_no_number(answer: object) -> None:
    guard = BatchingGuard(Odd(answer))
    assert (guard.wait_s(QUEUE), guard.is_faulty) == (0.0, True)


def test_interrupt_by_the_user_is_no_fault_of_a_policy() -> None:
    guard = BatchingGuard(Odd(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        guard.wait_s(QUEUE)
    assert not guard.is_faulty


class Unspeakable(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (-1, "answered -1"),
        (ValueError("too late"), "raised ValueError: too late"),
        (Unspeakable(), "raised Unspeakable"),
        ("x" * 500, f"answered '{'x' * (MOST_SHOWN - len('answered ') - 1)}"),
    ],
)
def test_first_fault_is_reported_and_no_other(answer: object, said: str, caplog: pytest.LogCaptureFixture) -> None:
    guard = BatchingGuard(Odd(answer))
    for _ in range(2):
        guard.wait_s(QUEUE)
    assert caplog.messages == [f"policy is faulty, a default decides policy=Odd(): it {said}"]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        (),
        [PromptShare(1, 5)],
        [PromptShare(0, 0)],
        [PromptShare(1, 0), PromptShare(0, 3)],
        [(0, 3)],
    ],
)
def test_shares_of_prompts_in_the_view_are_taken(answer: object) -> None:
    guard = SchedulingGuard(Odd(answer))
    assert guard.order(VIEW) is answer
    assert not guard.is_faulty


@pytest.mark.parametrize(
    "answer",
    [
        None,
        iter([PromptShare(0, 1)]),
        {0: 1},
        [PromptShare(0, 4)],
        [PromptShare(1, -1)],
        [PromptShare(2, 1)],
        [PromptShare(0, 1), PromptShare(0, 1)],
        [PromptShare(0, True)],
        [PromptShare(False, 1)],
        [PromptShare(0, 1.0)],  # type: ignore[arg-type]
        [(0, 1, 2)],
        [0],
    ],
)
def test_prompts_are_served_by_rank_where_shares_are_not_those_of_the_view(answer: object) -> None:
    guard = SchedulingGuard(Odd(answer))
    assert [share.prompt for share in guard.order(VIEW)] in ([0, 1], [])
    assert guard.is_faulty


@pytest.mark.parametrize(("answer", "chosen", "is_faulty"), [(None, None, False), ("a", "a", False), ("c", "b", True)])
def test_holder_that_is_preempted_is_one_of_those_offered(answer: object, chosen: object, is_faulty: bool) -> None:
    guard = PreemptionGuard(Odd(answer))
    assert (guard.choose(HOLDERS), guard.is_faulty) == (chosen, is_faulty)


def test_policy_is_not_asked_to_preempt_nobody() -> None:
    guard = PreemptionGuard(Odd(LookupError("asked")))
    assert (guard.choose([]), guard.is_faulty) == (None, False)


@pytest.mark.parametrize(("answer", "rank", "is_faulty"), [(2, 2, False), (5, 5, False), (0, 5, True), ([], 5, True)])
def test_replica_is_one_of_those_offered(answer: object, rank: int, is_faulty: bool) -> None:
    guard = RoutingGuard(Odd(answer))
    assert (guard.choose(ARRIVAL, REPLICAS), guard.is_faulty) == (rank, is_faulty)


@pytest.mark.parametrize(
    "ask",
    [
        lambda policy: BatchingGuard(policy).wait_s(QUEUE),
        lambda policy: SchedulingGuard(policy).order(VIEW),
        lambda policy: PreemptionGuard(policy).choose(HOLDERS),
        lambda policy: RoutingGuard(policy).choose(ARRIVAL, REPLICAS),
    ],
)
def test_what_a_policy_raises_ends_nothing(ask: Callable[[Any], object]) -> None:
    expected = ask(Odd("no answer to anything"))
    assert ask(Odd(MemoryError())) == expected
