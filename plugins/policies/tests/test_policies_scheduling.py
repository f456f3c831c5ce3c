from __future__ import annotations

from typing import Any

import pytest

from parallax_core.api import PromptShare, PromptView, SchedulingPolicy, SchedulingView
from parallax_core.builtin.scheduling import PriorityOrder
from parallax_core.node.policy.guard import SchedulingGuard
from parallax_policies.scheduling import FairByKey, ShortestFirst


def make_view(*prompts: dict[str, Any], num_running: int = 0, max_tokens: int = 100) -> SchedulingView:
    blank: dict[str, Any] = {"remaining": 10, "num_prompt": 10, "cached": 0, "num_output": 0}
    blank |= {"age_s": 0.0, "begun_s": 0.0, "priority": 0, "client": b""}
    views = tuple(PromptView(index=index, **{**blank, **fields}) for index, fields in enumerate(prompts))
    return SchedulingView(max_tokens=max_tokens, num_places=9, running=views[:num_running], waiting=views[num_running:])


def list_names(policy: SchedulingPolicy, view: SchedulingView) -> list[int]:
    return [share.prompt for share in policy.order(view)]


def test_order_by_priority_names_nothing() -> None:
    assert list_names(PriorityOrder(), make_view({}, {})) == []


def test_shortest_prompt_comes_first_and_equals_as_they_were() -> None:
    sizes = [30, 5, 0, 20, 5]
    view = make_view(*({"remaining": size} for size in sizes), num_running=3)
    assert ShortestFirst().order(view) == [(1, 5), (4, 5), (3, 20), (0, 30)]


def test_prompt_that_has_waited_for_long_comes_before_shorter_ones() -> None:
    view = make_view({"remaining": 90, "age_s": 10.0}, {"remaining": 1}, {"remaining": 50, "age_s": 30.0})
    assert list_names(ShortestFirst(patience_s=10.0), view) == [0, 2, 1]


@pytest.mark.parametrize("patience_s", [-1.0, float("inf"), float("nan")])
def test_patience_that_makes_no_sense_is_refused(patience_s: float) -> None:
    with pytest.raises(ValueError, match="patience_s is"):
        ShortestFirst(patience_s)


def test_clients_take_turns_however_many_requests_each_has() -> None:
    flood = [{"client": b"a", "age_s": 3.0} for _ in range(4)]
    view = make_view(*flood, {"client": b"b", "age_s": 1.0}, {"client": b"b", "age_s": 0.5})
    assert list_names(FairByKey(), view) == [0, 4, 1, 5, 2, 3]


def test_client_that_was_given_nothing_for_longest_comes_first() -> None:
    served = {"client": b"a", "remaining": 0, "begun_s": 0.2, "age_s": 9.0}
    waiting = [{"client": b"a", "age_s": 8.0}, {"client": b"b", "age_s": 0.5}]
    assert list_names(FairByKey(), make_view(served, *waiting, num_running=1)) == [2, 1]
    earlier = {**served, "begun_s": 2.0}
    assert list_names(FairByKey(), make_view(earlier, *waiting, num_running=1)) == [1, 2]


def test_step_is_shared_equally_among_clients() -> None:
    long = {"client": b"a", "remaining": 500, "age_s": 1.0}
    view = make_view(long, {"client": b"a", "remaining": 5}, {"client": b"b", "remaining": 70}, max_tokens=101)
    assert FairByKey().order(view) == [(0, 51), (2, 51), (1, 0)]


FULL = make_view({"remaining": 4}, {"remaining": 0}, {"remaining": 6}, num_running=2)


class Answering:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def order(self, view: SchedulingView) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise self

    def __repr__(self) -> str:
        raise self


@pytest.mark.parametrize(
    "answer",
    [
        *[None, 3, "01", {0: 1}, {(0, 1)}, iter([(0, 1)]), [0], [(0,)], [(0, 1, 1)], [None]],
        *[[(3, 1)], [(-1, 1)], [(0, 1), (0, 1)], [(0, -1)], [(0, 5)], [(1, 1)], [(0, 1.0)], [(0.0, 1)], [("0", 1)]],
        *[[(0, True)], [(False, 1)], [(0, None)], [([], 1)], [(0, 10**400)], [(0, float("nan"))]],
        *[ValueError("boom"), SystemExit(1), GeneratorExit(), Unspeakable(), [Unspeakable()], "x" * 10**6],
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_shares_that_are_no_order_are_reported_once_and_not_followed(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = SchedulingGuard(Answering(answer))
    assert [guard.order(FULL), guard.order(FULL)] == [(), ()]
    [record] = caplog.records
    assert len(record.getMessage()) < 500
    assert guard.is_faulty


@pytest.mark.parametrize("answer", [[], (), [(2, 6), (0, 4)], [(0, 0)], ((1, 0), [0, 1]), [PromptShare(2, 3)]])
def test_shares_of_prompts_in_the_view_are_followed(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert SchedulingGuard(Answering(answer)).order(FULL) == answer
    assert not caplog.records


def test_interrupt_of_the_user_is_no_fault_of_a_policy() -> None:
    with pytest.raises(KeyboardInterrupt):
        SchedulingGuard(Answering(KeyboardInterrupt())).order(FULL)


def test_client_is_not_shown_with_a_prompt() -> None:
    assert "secret" not in repr(make_view({"client": b"secret"}))
