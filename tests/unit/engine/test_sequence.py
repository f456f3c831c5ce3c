from __future__ import annotations

from collections.abc import Sequence as Listing
from typing import Any

import pytest

from parallax_core.base.ids import RequestId, SeqId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import Draw, Hidden, Row, Score
from parallax_core.engine.prefix import make_key
from parallax_core.engine.sequence import AGEING_S, RequestContext, Sequence
from parallax_core.engine.timing import Timeline

PROMPT = (5, 6, 7, 8)
HANDLE = SeqId(3)
GRAMMAR = Grammar(kind="json_object")


def decode(tokens: Listing[int]) -> str:
    return "".join(chr(token) for token in tokens)


def make_context(arrived: float = 0.0, number: int = 0, max_output: int = 9, **given: Any) -> RequestContext:
    fields = {"id": RequestId("1"), "prompt": PROMPT, "max_tokens": None, "sampling": Sampling(), **given}
    return RequestContext(
        request=Request(**fields), max_output=max_output, decode=decode, timeline=Timeline(arrived), number=number
    )


def make(**given: Any) -> Sequence:
    return Sequence(make_context(**given))


def add(sequence: Sequence, *tokens: int) -> None:
    for token in tokens:
        sequence.advance(token, ())


def test_earlier_and_more_urgent_requests_come_first_and_waiting_makes_urgent() -> None:
    usual = make(arrived=100.0, number=5)
    before = [
        make(arrived=99.0, number=9),
        make(arrived=100.0, number=4),
        make(arrived=100.0, number=9, waited_s=0.5),
        make(arrived=100.0 + AGEING_S - 0.1, number=9, priority=-1),
        make(arrived=100.0 - AGEING_S - 0.1, number=9, priority=1),
    ]
    assert all(each.rank < usual.rank for each in before)
    assert usual.rank < make(arrived=100.0 - AGEING_S + 0.1, number=0, priority=1).rank
    first, second = (Sequence(usual.context, choice=choice) for choice in range(2))
    assert first.rank < second.rank


def test_urgency_grows_by_a_priority_in_the_time_of_ageing() -> None:
    sequence = make(arrived=100.0, priority=3, waited_s=AGEING_S)
    assert sequence.urgency(100.0) == 2
    assert sequence.urgency(100.0 + 2 * AGEING_S) == 0


def test_tokens_are_read_across_the_end_of_the_prompt() -> None:
    sequence = make()
    add(sequence, 97, 98, 99)
    every = (*PROMPT, 97, 98, 99)
    for start in range(8):
        for stop in range(start, 8):
            assert sequence.read(start, stop) == every[start:stop]
    assert (sequence.num_prompt, sequence.num_output, sequence.num_tokens) == (4, 3, 7)


def test_key_grows_with_the_tokens_and_later_answers_begin_with_that_of_the_first() -> None:
    context = make_context(n=2)
    first = Sequence(context)
    assert first.key(2) == make_key(PROMPT[:2])
    add(first, 97)
    assert first.key(5) == make_key((*PROMPT, 97))
    second = Sequence(context, (first,), 1)
    add(second, 98)
    assert [each.key(5) for each in (first, second)] == [make_key((*PROMPT, token)) for token in (97, 98)]
    assert second.key(0) == b""


def test_row_has_the_missing_tokens_and_draws_with_the_last() -> None:
    sequence = make(n=3, logprobs=2)
    sequence.begin(HANDLE, 1)
    assert (sequence.num_missing, sequence.is_ready, sequence.is_waiting) == (3, True, False)
    assert sequence.make_row(2) == Row(HANDLE, 1, (6, 7))
    assert (sequence.planned, sequence.num_missing, sequence.is_ready) == (3, 1, True)
    assert sequence.make_row(1) == Row(HANDLE, 3, (8,), (Draw(0, 3, 2),))
    assert (sequence.is_drawing, sequence.is_ready, sequence.num_missing) == (True, False, 0)
    add(sequence, 97)
    assert (sequence.is_drawing, sequence.is_ready, sequence.num_missing) == (False, True, 1)
    assert sequence.make_row(1) == Row(HANDLE, 4, (97,), (Draw(0, 1, 2),))


def test_first_draw_begins_the_other_answers_and_costs_what_all_do() -> None:
    sequence = make(n=3, logprobs=2)
    cost = sequence.context.cost
    assert (sequence.num_begun, sequence.draw_bytes) == (2, cost.first_draw)
    add(sequence, 97)
    assert (sequence.num_begun, sequence.draw_bytes) == (0, cost.next_draw)
    assert cost.next_draw < cost.first_draw


def test_cached_tokens_are_those_of_the_first_time_and_of_the_prompt() -> None:
    sequence = make()
    assert sequence.num_cached is None
    sequence.begin(HANDLE, 0)
    sequence.restart()
    assert (sequence.seq, sequence.planned, sequence.is_waiting) == (None, 0, True)
    sequence.begin(SeqId(4), 3)
    found: tuple[SeqId | None, int, int | None] = (sequence.seq, sequence.planned, sequence.num_cached)
    assert found == (SeqId(4), 3, 0)
    resumed = make()
    add(resumed, 97, 98)
    resumed.begin(HANDLE, 5)
    assert (resumed.planned, resumed.num_cached) == (5, 4)


def test_row_that_failed_is_made_again() -> None:
    sequence = make(prompt_logprobs=1)
    sequence.begin(HANDLE, 0)
    row = sequence.make_row(4)
    assert row.outputs == (Score(0, 6, 1), Score(1, 7, 1), Score(2, 8, 1), Draw(3))
    sequence.take_back(0)
    assert (sequence.planned, sequence.is_drawing, sequence.seq) == (0, False, HANDLE)
    assert sequence.make_row(4) == row


def test_tokens_that_are_asked_about_are_not_reused() -> None:
    assert make().num_reusable == 3
    scored = make(prompt_logprobs=0)
    assert scored.num_reusable == 0
    scored.begin(HANDLE, 0)
    scored.make_row(2)
    assert scored.num_reusable == 2
    scored.restart()
    assert scored.num_reusable == 0
    scored.begin(HANDLE, 0)
    scored.make_row(4)
    assert scored.num_reusable == 3
    add(scored, 97)
    assert scored.num_reusable == 4
    assert make(pooling="mean").num_reusable == 0
    assert make(pooling="last").num_reusable == 3


def test_scores_are_those_of_the_first_answer_that_was_not_delivered_yet() -> None:
    context = make_context(prompt_logprobs=1, n=2)
    assert Sequence(context).score is not None
    assert Sequence(context, choice=1).score is None
    assert make(prompt_logprobs=1, delivered=((97,),)).score is None
    assert (make().score, make().embedding) == (None, None)


def test_embedding_is_asked_for_beside_the_draw() -> None:
    sequence = make(pooling="mean")
    sequence.begin(HANDLE, 0)
    assert sequence.make_row(3).outputs == (Hidden(2, 3),)
    assert sequence.make_row(1).outputs == (Hidden(0, 1), Draw(0))


def awaits_slow_mask(sequence: Sequence) -> bool:
    return sequence.awaits_slow_mask


def test_answer_under_a_grammar_waits_for_its_mask() -> None:
    sequence = make(grammar=GRAMMAR)
    sequence.begin(HANDLE, 0)
    assert sequence.context.is_held
    assert (sequence.can_draw, sequence.is_ready, awaits_slow_mask(sequence)) == (False, False, True)
    sequence.context.masks.note(0.0001, 1)
    assert not awaits_slow_mask(sequence)
    sequence.context.masks.note(0.04, 1)
    assert awaits_slow_mask(sequence)
    sequence.mask = b"\xff"
    assert (sequence.can_draw, sequence.is_ready, awaits_slow_mask(sequence)) == (True, True, False)
    assert sequence.make_row(4).outputs == (Draw(3, 1, -1, True),)
    sequence.mask = None
    assert not awaits_slow_mask(sequence), "it is drawing"
    add(sequence, 97)
    assert (sequence.mask, sequence.can_draw, awaits_slow_mask(sequence)) == (None, False, True)


def test_answer_without_a_grammar_waits_for_none() -> None:
    sequence = make()
    assert (sequence.context.is_held, sequence.can_draw, sequence.awaits_slow_mask) == (False, True, False)
    sequence.is_over = True
    assert not sequence.is_waiting


@pytest.mark.parametrize(
    ("given", "answer", "ends"),
    [
        ({"max_output": 3}, "abc", ["", "", "length"]),
        ({"stop_ids": frozenset({98})}, "a", ["", "stop"]),
        ({"stop": ("bc",)}, "a", ["", "", "stop"]),
        ({"stop": ("bx",), "max_output": 2}, "ab", ["", "length"]),
        ({"stop": ("c",), "max_output": 3}, "ab", ["", "", "stop"]),
        ({"stop": ("b",), "sampling": Sampling(min_tokens=2), "max_output": 3}, "abc", ["", "", "length"]),
        ({"stop": ("b",), "sampling": Sampling(min_tokens=1), "max_output": 3}, "a", ["", "stop"]),
        ({"stop_ids": frozenset({97})}, "", ["stop"]),
    ],
)
def test_answer_ends_where_it_has_to(given: dict[str, Any], answer: str, ends: list[str]) -> None:
    sequence = make(**given)
    deltas = [sequence.advance(token, ()) for token in (97, 98, 99)[: len(ends)]]
    assert [delta.ended or "" for delta in deltas] == ends
    assert "".join(delta.text for delta in deltas) == answer
    assert [delta.tokens for delta in deltas] == [(97,), (98,), (99,)][: len(ends)]
    stop = given.get("stop", ("",))[0]
    assert [delta.stop_string for delta in deltas][-1] == (stop if ends[-1] == "stop" else "")
