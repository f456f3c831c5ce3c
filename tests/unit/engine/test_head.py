from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from parallax_core.api import Delta, InvalidRequest, Request, RequestId, Sampling, SeqId, Unavailable
from parallax_core.engine.head import Head
from tests.toy import VOCAB, ToyStage, continuation


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_request(
    prompt: list[int], max_tokens: int | None = 4, stop_ids: frozenset[int] = frozenset(), stop: tuple[str, ...] = ()
) -> Request:
    return Request(
        id=RequestId("r"),
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=Sampling(),
        stop_ids=stop_ids,
        stop=stop,
    )


def run_step(head: Head, stage: ToyStage) -> list[tuple[SeqId, Delta]] | None:
    step = head.plan()
    if step is None:
        return None
    stage.edit(step.edits)
    return head.absorb(stage.step(step.batch).wait())


def run_all(head: Head, stage: ToyStage) -> dict[SeqId, list[Delta]]:
    deltas: dict[SeqId, list[Delta]] = {}
    while (found := run_step(head, stage)) is not None:
        for seq, delta in found:
            deltas.setdefault(seq, []).append(delta)
    return deltas


def tokens_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def test_head_gives_the_tokens_of_the_sequential_run() -> None:
    stage = ToyStage()
    head = Head(stage.info, decode)
    prompts = [[1, 2, 3], list(range(20)), [5]]
    seqs = [head.accept(make_request(prompt)) for prompt in prompts]
    deltas = run_all(head, stage)
    assert [tokens_of(deltas[seq]) for seq in seqs] == [continuation(prompt, 4) for prompt in prompts]


def test_head_says_how_a_request_ended_and_what_it_cost() -> None:
    stage = ToyStage()
    head = Head(stage.info, decode)
    seq = head.accept(make_request([1, 2, 3]))
    finish = run_all(head, stage)[seq][-1].finish
    assert finish is not None
    assert (finish.reason, finish.prompt_tokens, finish.output_tokens) == ("length", 3, 4)


def test_head_stops_at_a_stop_token_which_has_no_text() -> None:
    answer = continuation([1, 2, 3], 4)
    stage = ToyStage()
    head = Head(stage.info, decode)
    seq = head.accept(make_request([1, 2, 3], stop_ids=frozenset({answer[1]})))
    deltas = run_all(head, stage)[seq]
    assert tokens_of(deltas) == answer[:2]
    assert "".join(delta.text for delta in deltas) == f"<{answer[0]}>"
    assert deltas[-1].finish is not None
    assert deltas[-1].finish.reason == "stop"


def test_head_stops_at_a_stop_string_across_tokens() -> None:
    answer = continuation([1, 2, 3], 4)
    stage = ToyStage()
    head = Head(stage.info, decode)
    seq = head.accept(make_request([1, 2, 3], stop=(f"{answer[0]}><{answer[1]}",)))
    deltas = run_all(head, stage)[seq]
    assert "".join(delta.text for delta in deltas) == "<"
    assert deltas[-1].finish is not None
    assert deltas[-1].finish.reason == "stop"
    assert tokens_of(deltas) == answer[:2]


def test_head_decodes_before_it_prefills() -> None:
    stage = ToyStage(max_batch_tokens=4)
    head = Head(stage.info, decode)
    first = head.accept(make_request([1]))
    run_step(head, stage)
    head.accept(make_request(list(range(12))))
    run_step(head, stage)
    assert [(row.seq == first, len(row.tokens)) for row in stage.batches[-1].rows] == [(True, 1), (False, 3)]


def test_head_refuses_what_can_never_fit() -> None:
    head = Head(ToyStage(num_pages=4, page_size=4).info, decode)
    with pytest.raises(InvalidRequest, match="16 in all") as caught:
        head.accept(make_request(list(range(16))))
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match="more than the 16") as caught:
        head.accept(make_request([1, 2], max_tokens=15))
    assert caught.value.param == "max_tokens"
    with pytest.raises(InvalidRequest, match="empty"):
        head.accept(make_request([]))


def test_head_fills_the_context_when_no_limit_is_given() -> None:
    stage = ToyStage(context=10)
    head = Head(stage.info, decode)
    seq = head.accept(make_request([1, 2, 3], max_tokens=None))
    assert tokens_of(run_all(head, stage)[seq]) == continuation([1, 2, 3], 7)


def test_head_refuses_when_too_many_wait() -> None:
    head = Head(ToyStage().info, decode, max_waiting=2)
    head.accept(make_request([1]))
    head.accept(make_request([2]))
    with pytest.raises(Unavailable, match="2 requests are waiting"):
        head.accept(make_request([3]))


def test_head_ends_only_the_requests_of_a_failed_step() -> None:
    stage = ToyStage(num_pages=2)
    head = Head(stage.info, decode)
    failed = head.accept(make_request([1, 2, 3]))
    waiting = head.accept(make_request([4, 5, 6]))
    step = head.plan()
    assert step is not None
    stage.edit(step.edits)
    [(seq, delta)] = head.abandon("it broke")
    assert seq == failed
    assert delta.finish is not None
    assert (delta.finish.reason, delta.finish.message) == ("error", "it broke")
    assert tokens_of(run_all(head, stage)[waiting]) == continuation([4, 5, 6], 4)
    assert not stage.tokens


class Traffic(RuleBasedStateMachine):
    """Random arrivals, steps and cancels, also while a step is in flight, over a tiny pool."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = ToyStage(num_pages=6, page_size=3, max_batch_tokens=5, context=15)
        self.head = Head(self.stage.info, decode, max_running=4)
        self.live: dict[SeqId, tuple[list[int], int]] = {}
        self.deltas: dict[SeqId, list[Delta]] = {}

    @rule(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), length=st.integers(1, 6))
    def submit(self, prompt: list[int], length: int) -> None:
        seq = self.head.accept(make_request(prompt, length))
        self.live[seq] = (prompt, length)
        self.deltas[seq] = []

    @rule(pick=st.integers(0, 100), data=st.booleans())
    def step(self, pick: int, data: bool) -> None:
        step = self.head.plan()
        if step is None:
            return
        self.stage.edit(step.edits)
        result = self.stage.step(step.batch).wait()
        if data and self.live:
            self.cancel(pick)
        for seq, delta in self.head.absorb(result):
            self.deltas[seq].append(delta)
            if delta.finish is not None:
                prompt, length = self.live.pop(seq)
                assert tokens_of(self.deltas[seq]) == continuation(prompt, length)

    @rule(pick=st.integers(0, 100))
    def cancel(self, pick: int) -> None:
        if self.live:
            seq = list(self.live)[pick % len(self.live)]
            self.head.cancel(seq)
            del self.live[seq]

    @invariant()
    def nothing_follows_a_finish(self) -> None:
        for deltas in self.deltas.values():
            assert all(delta.finish is None for delta in deltas[:-1])

    def teardown(self) -> None:
        for seq, deltas in run_all(self.head, self.stage).items():
            prompt, length = self.live.pop(seq)
            assert tokens_of(self.deltas[seq] + deltas) == continuation(prompt, length)
        assert not self.live
        assert not self.stage.tokens
        assert self.head._ledger.free == 6


Traffic.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHeadUnderTraffic = Traffic.TestCase
