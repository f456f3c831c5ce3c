from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from parallax_core.api import PromptShare, PromptView, RequestId, SchedulingView
from parallax_core.engine.limits import Limits
from parallax_core.engine.prompt_order import MOST_OVERTAKEN, MOST_RUNNING, MOST_WAITING, OVERTAKEN_S, Overtaking
from parallax_core.testing.toy import Toy
from parallax_policies.scheduling import FairByKey, ShortestFirst
from tests.unit.engine.plan_traces import GOLDEN, PlanTrace
from tests.unit.engine.replica import TOY, Replica, open_stages

SEEDS = range(24)


class Recording:
    """Keeps the views it is given, and answers as it is told."""

    def __init__(self, answer: Callable[[SchedulingView], Sequence[PromptShare]] = lambda view: ()) -> None:
        self.views: list[SchedulingView] = []
        self.answer = answer

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        parts = {field.name: getattr(view, field.name) for field in fields(view)}
        self.views.append(SchedulingView(**parts))  # as it is now
        return self.answer(view)


def name_all(view: SchedulingView) -> list[PromptShare]:
    return [PromptShare(each.index, each.remaining) for each in (*view.running, *view.waiting)]


def name_last_first(view: SchedulingView) -> list[PromptShare]:
    return name_all(view)[::-1]


@pytest.mark.parametrize("seeds", [SEEDS[:6], pytest.param(SEEDS[6:], marks=pytest.mark.nightly)], ids=str)
def test_default_plans_the_steps_that_are_on_record(seeds: range) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {str(seed): PlanTrace(seed).run() for seed in seeds} == {str(seed): golden[str(seed)] for seed in seeds}


def test_policy_that_names_all_prompts_in_the_order_of_the_view_plans_as_the_default() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = {str(seed): PlanTrace(seed, scheduling=Recording(name_all)).run() for seed in SEEDS[:4]}
    assert found == {seed: golden[seed] for seed in found}


def test_view_shows_what_could_be_in_the_step() -> None:
    policy = Recording()
    replica = Replica(TOY.open(max_batch_tokens=6, num_pages=40, context=40), scheduling=policy)
    replica.ask([1, 2], client=b"key:a")
    replica.step()
    replica.ask(range(10, 22), client=b"key:b", priority=3, waited_s=2.0)
    replica.ask([5], priority=9)
    replica.step()
    replica.step()
    view = policy.views[-1]
    assert view.max_tokens == 6 - 1
    assert view.num_places == 32 - 2
    assert [each.index for each in (*view.running, *view.waiting)] == [0, 1, 2]
    prefill, decode = view.running
    assert (prefill.remaining, prefill.num_prompt, prefill.cached, prefill.num_output) == (12 - 5, 12, 0, 0)
    assert prefill.age_s == pytest.approx(2.02)
    assert prefill.begun_s == pytest.approx(0.01)
    assert (prefill.priority, prefill.client) == (3, b"key:b")
    assert (decode.remaining, decode.num_output, decode.client) == (0, 2, b"key:a")
    [waiting] = view.waiting
    assert (waiting.remaining, waiting.begun_s, waiting.priority) == (1, 0.0, 9)


def test_view_has_no_place_where_as_many_run_as_may() -> None:
    policy = Recording()
    limits = Limits(max_running=1)
    replica = Replica(TOY.open(max_batch_tokens=4, num_pages=40, context=40), limits=limits, scheduling=policy)
    replica.ask(range(12), 1)
    replica.step()
    assert policy.views[-1].num_places == 1
    replica.ask([5])
    replica.step()
    view = policy.views[-1]
    assert (view.num_places, len(view.running), len(view.waiting)) == (0, 1, 1)


def test_waiting_prompt_shows_what_is_cached() -> None:
    policy = Recording()
    replica = Replica(TOY.open(num_pages=40), scheduling=policy)
    replica.ask(range(12), 1)
    replica.run()
    replica.ask([*range(10), 50, 51, 52], 1)
    replica.step()
    [waiting] = policy.views[-1].waiting
    assert (waiting.cached, waiting.remaining, waiting.num_prompt) == (10, 3, 13)


def test_view_is_bounded_and_begins_with_prompts_that_are_begun() -> None:
    policy = Recording()
    replica = Replica(TOY.open(num_pages=900, max_batch_tokens=302), limits=Limits(max_running=300), scheduling=policy)
    for _ in range(299):
        replica.ask([1], 9)
    replica.step()
    replica.ask(range(20), 9)
    for _ in range(MOST_WAITING + 5):
        replica.ask([2])
    replica.step()
    replica.step()
    view = policy.views[-1]
    assert (len(view.running), len(view.waiting)) == (MOST_RUNNING, MOST_WAITING) == (256, 64)
    assert [each.remaining for each in view.running] == [17] + [0] * 255


def test_view_cannot_be_changed() -> None:
    policy = Recording()
    replica = Replica(scheduling=policy)
    replica.ask([1])
    replica.step()
    [view] = policy.views
    for part, kind in ((view, SchedulingView), (view.waiting[0], PromptView)):
        for field in fields(kind):
            with pytest.raises((FrozenInstanceError, TypeError)):
                setattr(part, field.name, 0)


def test_policy_is_not_asked_when_there_is_nothing_to_decide() -> None:
    policy = Recording()
    replica = Replica(limits=Limits(max_running=1), scheduling=policy)
    replica.ask([1], 5)
    replica.ask([2], 1)
    replica.step()
    for _ in range(3):  # one decodes, and no place is free for the other
        replica.step()
    assert len(policy.views) == 1


class Looking:
    """Looks at the waiting prompts only."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        assert vars(view).keys() & {"running", "waiting"} == set()
        assert len(view.waiting) == 1
        assert vars(view).keys() & {"running", "waiting"} == {"waiting"}
        return ()


def test_parts_of_a_view_at_which_nobody_looks_are_not_made() -> None:
    replica = Replica(scheduling=Looking())
    replica.ask([1])
    replica.run()
    replica.check_tokens()


def test_decode_that_is_named_is_left_to_core() -> None:
    stages = open_stages(Toy(("full",) * 4), 2)
    replica = Replica(*stages, scheduling=Recording(name_all))
    for _ in range(4):
        replica.ask([1, 2], 9)
    for _ in range(3):
        replica.step()
    replica.ask([3])
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == [1, 1, 1]


def test_named_prompts_come_first_and_others_follow() -> None:
    replica = Replica(limits=Limits(max_running=2), scheduling=Recording(lambda view: name_last_first(view)[:1]))
    first, second, third = (replica.ask([token], 1) for token in (1, 2, 3))
    replica.step()
    assert [bool(replica.deltas[each]) for each in (first, second, third)] == [True, False, True]
    replica.run()
    replica.check_tokens()


@pytest.mark.parametrize(
    ("shares", "rows"),
    [([3, 2], [8, 2]), ([3, 9], [3, 7]), ([0, 0], [8, 2]), ([0, 9], [1, 9]), ([8, 0], [8, 2]), ([8, 9], [8, 2])],
)
def test_share_limits_a_prompt_and_the_rest_of_the_step_is_given_in_order(shares: list[int], rows: list[int]) -> None:
    policy = Recording(lambda view: [PromptShare(0, shares[0]), PromptShare(1, shares[1])])
    replica = Replica(TOY.open(max_batch_tokens=10), scheduling=policy)
    replica.ask(range(8))
    replica.ask(range(50, 59))
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == rows


def test_prompt_that_does_not_fit_lets_no_later_one_be_admitted() -> None:
    replica = Replica(TOY.open(num_pages=4, page_size=4), scheduling=Recording(name_last_first))
    replica.ask(range(9), 3)
    replica.step()
    small, large = replica.ask([1], 1), replica.ask(range(40, 50), 1)
    replica.step()
    assert [replica.deltas[each] for each in (small, large)] == [[], []]
    replica.run()
    replica.check_tokens()


def flood(policy: Any, num_steps: int, *, late_s: float = 0.0) -> tuple[Replica, RequestId, list[str]]:
    """Ask for a long prompt among short ones that come all the time; return it, and the faults that are noted."""
    faults: list[str] = []
    replica = Replica(
        TOY.open(num_pages=90, max_batch_tokens=2, context=64),
        limits=Limits(max_running=2, max_waiting=999),
        scheduling=policy,
        note_scheduling_fault=faults.append,
    )
    replica.ask([1], 1)
    replica.step()
    long = replica.ask(range(10), 1)
    for number in range(num_steps):
        replica.ask([number % 90], 1)
        replica.ask([number % 80], 1)
        replica.now += 1.0 + late_s
        replica.step()
    return replica, long, faults


def test_starved_prompt_is_served_after_its_limit_and_the_fault_is_noted() -> None:
    replica, long, faults = flood(Recording(name_last_first), 30)
    assert (replica.deltas[long], faults) == ([], [])
    replica, long, faults = flood(Recording(name_last_first), 60)
    [fault, *_] = faults
    assert fault.startswith("starves prompts: 66 of lower rank came before one of 10 tokens in")
    assert replica.reason(long) == "length"
    replica.check_tokens(long)


@pytest.mark.parametrize("policy", [ShortestFirst(), FairByKey()])
def test_policy_that_lets_old_prompts_pass_starves_none(policy: Any) -> None:
    replica, long, faults = flood(policy, 40)
    assert (replica.reason(long), faults) == ("length", [])


@pytest.mark.parametrize(
    ("num_prompts", "seconds", "num_tokens", "num_own", "starves"),
    [
        (MOST_OVERTAKEN + 1, OVERTAKEN_S + 0.1, 65, 1, True),
        (MOST_OVERTAKEN, OVERTAKEN_S + 0.1, 65, 1, False),
        (MOST_OVERTAKEN + 1, OVERTAKEN_S, 65, 1, False),
        (MOST_OVERTAKEN + 1, OVERTAKEN_S + 0.1, 64, 1, False),
        (MOST_OVERTAKEN + 1, OVERTAKEN_S + 0.1, 1, 0, True),
    ],
)
def test_prompt_is_starved_beyond_each_of_the_limits(
    num_prompts: int, seconds: float, num_tokens: int, num_own: int, *, starves: bool
) -> None:
    assert Overtaking(5.0, num_prompts, num_tokens, num_own).starves(5.0 + seconds) == starves
