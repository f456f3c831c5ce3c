from __future__ import annotations

import pytest

from parallax_core.api import Sampling
from parallax_core.engine.limits import Limits
from parallax_core.engine.readiness import HOLD_SHARE, LEAST_HOLD_S, MOST_HOLD_S
from tests.support.grammars import STOP, make_grammar
from tests.unit.engine.replica import Replica

GRAMMAR = {"grammar": make_grammar(5, 12), "stop_ids": frozenset({STOP}), "sampling": Sampling(seed=8)}
GRAMMAR_2 = {**GRAMMAR, "n": 2}


def test_answer_gets_no_row_before_its_mask_is_made() -> None:
    replica = Replica()
    asked, other = replica.ask((1, 2, 3), 4, **GRAMMAR), replica.ask((4, 5), 4)
    for _ in range(4):
        step = replica.head.plan(replica.now)
        assert step is not None
        assert (len(step.batch.rows), step.masks) == (1, ())
        replica.head.absorb(replica.compute(step), replica.now)
    replica.collect()
    assert replica.tokens(other) == replica.expected(other)
    assert replica.head.plan(replica.now) is None
    replica.run()
    replica.check_tokens(asked)


def test_waiting_for_a_mask_is_no_deadlock() -> None:
    replica = Replica()
    asked = replica.ask((1, 2, 3), 4, **GRAMMAR)
    for _ in range(10):
        replica.now += 1.0
        assert replica.head.plan(replica.now) is None
    replica.collect()
    assert replica.deltas[asked] == []
    replica.run()
    replica.check_tokens(asked)


def test_step_waits_a_moment_for_masks_that_have_been_quick() -> None:
    """Answers under grammars would fall apart into steps of few rows, each as slow as one of all."""
    replica = Replica()
    asked = [replica.ask((number,), 8, **GRAMMAR) for number in range(3)]
    other = replica.ask((4, 5), 8)
    assert replica.step()
    assert replica.head.plan(replica.now) is None, "their masks have been quick"
    replica.give_masks(2)
    assert replica.head.plan(replica.now + 0.9 * LEAST_HOLD_S) is None
    assert 0 < replica.head.hold_s(replica.now + 0.9 * LEAST_HOLD_S) < 0.2 * LEAST_HOLD_S
    step = replica.head.plan(replica.now + 1.1 * LEAST_HOLD_S)
    assert step is not None
    assert (len(step.batch.rows), len(step.masks)) == (3, 2), "the third is late"
    replica.head.absorb(replica.compute(step), replica.now)
    replica.run()
    replica.check_tokens(*asked, other)


@pytest.mark.parametrize(("step_s", "hold_s"), [(0.0, LEAST_HOLD_S), (0.05, 0.05 * HOLD_SHARE), (1.0, MOST_HOLD_S)])
def test_step_waits_for_masks_no_longer_than_a_part_of_its_time(step_s: float, hold_s: float) -> None:
    """On a busy machine a thread that makes masks is late by some milliseconds, which are much for a short step."""
    replica = Replica()
    replica.ask((1, 2, 3), 8, **GRAMMAR)
    replica.ask((4, 5), 8)
    replica.give_masks()
    step = replica.head.plan(replica.now)
    assert step is not None
    replica.head.absorb(replica.compute(step), replica.now + step_s)
    assert replica.head.mask_hold_s(replica.now + step_s) == pytest.approx(hold_s)


def test_step_waits_for_no_mask_that_may_be_slow() -> None:
    replica = Replica()
    asked, other = replica.ask((1, 2, 3), 8, **GRAMMAR), replica.ask((4, 5), 8)
    assert replica.step()
    [pending] = replica.head.take_masks()
    assert (pending.is_quick, pending.may_be_slow) == (True, False)
    pending.note(0.04)
    replica.head.give_mask(pending, pending.make(), replica.now)
    assert replica.step()
    assert replica.head.mask_hold_s(replica.now) == 0
    step = replica.head.plan(replica.now)
    assert step is not None
    assert (len(step.batch.rows), step.masks) == (1, ())
    replica.head.absorb(replica.compute(step), replica.now)
    [pending] = replica.head.take_masks()
    assert (pending.is_quick, pending.may_be_slow) == (False, True)
    replica.head.give_mask(pending, pending.make(), replica.now)
    replica.run()
    replica.check_tokens(asked, other)


def test_answers_of_a_request_that_was_slow_are_all_expected_to_be() -> None:
    replica = Replica()
    replica.ask((1, 2, 3), 8, **GRAMMAR_2)
    replica.step()
    first, second = replica.head.take_masks()
    assert first.is_quick
    first.note(0.04)
    assert second.may_be_slow


def test_answer_that_waits_for_a_slow_mask_leaves_its_place_to_others() -> None:
    """It kept one of few places on the stages, for as long as its masks took; its KV stays as long as there is room."""
    replica = Replica(limits=Limits(max_running=1))
    slow, other = replica.ask((1, 2, 3), 4, **GRAMMAR), replica.ask((4, 5), 4)
    assert replica.step()
    [pending] = replica.head.take_masks()
    pending.note(0.04)
    replica.now += LEAST_HOLD_S
    for _ in range(4):
        step = replica.head.plan(replica.now)
        assert step is not None
        replica.head.absorb(replica.compute(step), replica.now)
    replica.collect()
    assert replica.tokens(other) == replica.expected(other)
    num_computed = replica.count_tokens()
    replica.head.give_mask(pending, pending.make(), replica.now)
    replica.run()
    replica.check_tokens(slow)
    assert replica.count_tokens() == num_computed + 3, "nothing is computed again"


def test_mask_of_a_request_that_has_ended_is_dropped() -> None:
    replica = Replica()
    gone, kept = replica.ask((1, 2, 3), 4, **GRAMMAR), replica.ask((3, 2, 1), 4, **GRAMMAR)
    [first, second] = replica.head.take_masks()
    replica.head.cancel(gone)
    assert (first.is_wanted, second.is_wanted) == (False, True)
    replica.head.give_mask(first, first.make(), replica.now)
    replica.head.give_mask(second, second.make(), replica.now)
    step = replica.head.plan(replica.now)
    assert step is not None
    assert len(step.batch.rows) == 1
    replica.head.absorb(replica.compute(step), replica.now)
    replica.run()
    replica.check_tokens(kept)
    assert replica.deltas[gone] == []


def test_mask_in_hand_outlasts_the_stages() -> None:
    replica = Replica()
    asked = replica.ask((1, 2, 3), 6, **GRAMMAR)
    assert replica.step()
    replica.give_masks()
    replica.head.restart()
    assert replica.head.take_masks() == []
    step = replica.head.plan(replica.now)
    assert step is not None
    assert len(step.masks) == 1
    replica.head.absorb(replica.compute(step), replica.now)
    replica.run()
    replica.check_tokens(asked)


def test_failed_step_comes_again_with_the_same_masks() -> None:
    replica = Replica()
    asked = [replica.ask((number, 2, 3), 6, **GRAMMAR) for number in range(2)]
    replica.step()
    replica.give_masks()
    failed = replica.fail(replica.states[asked[0]].answers[0].seq)  # type: ignore[arg-type]
    step = replica.head.plan(replica.now)
    assert step is not None
    assert [mask.bits for mask in step.masks] == [failed.masks[1].bits]
    replica.head.absorb(replica.compute(step), replica.now)
    replica.run()
    replica.check_tokens(asked[1])
