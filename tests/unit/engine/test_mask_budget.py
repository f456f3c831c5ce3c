from __future__ import annotations

from parallax_core.engine.mask_budget import ALLOWANCE_S, MOST_MASK_S, QUICK_S, TOKEN_S, MaskBudget


def test_usual_masks_go_on_for_ever() -> None:
    budget = MaskBudget()
    assert (budget.is_known, budget.is_quick) == (False, False)
    assert {budget.note(QUICK_S, 1) for _ in range(10_000)} == {""}
    assert (budget.is_known, budget.is_quick) == (True, True)


def test_mask_that_takes_too_long_ends_its_request() -> None:
    budget = MaskBudget()
    assert budget.note(MOST_MASK_S, 0) == ""
    reason = budget.note(0.3, 1)
    assert reason == ("the grammar cannot be followed: a token took 300 ms, and may take 52 ms; make it less ambiguous")


def test_answers_share_an_allowance_that_grows_with_their_tokens() -> None:
    """Many answers to a request may take no longer than one."""
    slow_s = 0.04
    for num_answers in (1, 128):
        budget, count = MaskBudget(), 0
        while not (reason := budget.note(slow_s, 1)):
            count += 1
        assert count == int(ALLOWANCE_S / (slow_s - TOKEN_S)), num_answers
        assert "it has taken 1.08 s, and may take" in reason


def test_tokens_that_another_engine_has_drawn_are_followed_in_proportion() -> None:
    """A request that moves has all of its tokens followed again at once."""
    budget = MaskBudget()
    assert budget.note(5000 * TOKEN_S, 5000) == ""
    assert not budget.is_quick
    assert MaskBudget().note(1.1 * 5000 * TOKEN_S, 5000) != ""


def test_one_slow_mask_among_quick_ones_is_forgiven_and_several_are_not() -> None:
    budget = MaskBudget()
    for seconds in (5 * QUICK_S, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        budget.note(seconds, 1)
    assert budget.is_quick
    budget.note(5 * QUICK_S, 1)
    assert not budget.is_quick


def test_mask_after_several_tokens_may_take_as_long_as_theirs_together() -> None:
    for num_tokens, is_quick in ((10, True), (9, False), (0, False)):
        budget = MaskBudget()
        assert budget.note(10 * QUICK_S, num_tokens) == ""
        assert budget.is_quick is is_quick
