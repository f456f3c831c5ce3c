from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import pytest

from parallax_core.api import (
    BackendFailed,
    Delta,
    InvalidRequest,
    LayerRange,
    Sampling,
    SeqId,
    Stage,
    StageInfo,
)
from parallax_core.engine.head import Head
from parallax_core.engine.limits import Limits
from parallax_core.engine.pending_mask import PendingMask
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline import engine as pipeline
from parallax_core.node.pipeline import mask_maker
from parallax_core.node.pipeline.bounded_thread import BoundedThread
from parallax_core.node.pipeline.mask_maker import MaskLane
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from tests.support.grammars import STOP, SumMatcher, expect_answer, make_grammar
from tests.unit.node.pipeline.grammars import HOT, ask, plan
from tests.unit.node.pipeline.local import collect, decode, end_of, make_stages, openers, running, tokens_of

TOY = Toy(("full", "window", "full", "full", "window"))
PROMPTS = ([1, 2, 3], list(range(30)), [7] * 11, [4])


def read_answer(deltas: Sequence[Delta], index: int) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.tokens]


@pytest.mark.parametrize("num_stages", [1, 2, 3])
async def test_answers_under_a_grammar_equal_those_of_the_plain_model(num_stages: int) -> None:
    samplings = (HOT, GREEDY, Sampling(temperature=2.0, seed=3, min_tokens=6), Sampling(seed=1, frequency_penalty=1.0))
    async with running(make_stages(num_stages), plan()) as engine:
        requests = [ask(prompt, sampling=sampling) for prompt, sampling in zip(PROMPTS, samplings, strict=True)]
        free = ask([5, 6], sampling=GREEDY)
        streams = [engine.submit(each) for each in (*requests, replace(free, grammar=None, max_tokens=6))]
        answers = await asyncio.gather(*map(collect, streams))
    for request, answer in zip(requests, answers, strict=False):
        assert tokens_of(answer) == expect_answer(TOY, request.prompt, make_grammar(), request.sampling)
        assert end_of(answer)[0] == "stop"
    assert tokens_of(answers[-1]) == TOY.continuation([5, 6], 6)


async def test_each_of_several_answers_follows_the_grammar_by_itself() -> None:
    async with running(make_stages(2), plan()) as engine:
        answer = await collect(engine.submit(ask(PROMPTS[1], n=4)))
    found = [read_answer(answer, index) for index in range(4)]
    assert found == [expect_answer(TOY, PROMPTS[1], make_grammar(), HOT, choice) for choice in range(4)]
    assert len({tuple(each) for each in found}) > 1


async def test_answer_that_cannot_end_before_min_tokens_ends_where_the_grammar_does() -> None:
    sampling = Sampling(seed=2, min_tokens=20)
    async with running(make_stages(1), plan()) as engine:
        answer = await collect(engine.submit(ask([1, 2], make_grammar(5, 4), sampling=sampling)))
    assert len(tokens_of(answer)) == 5
    assert tokens_of(answer)[-1] == STOP


async def test_masks_that_take_long_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    find_mask, slow = SumMatcher.find_mask, 0.3

    def find_slowly(self: SumMatcher, stop_ids: frozenset[int], *, may_end: bool) -> bytes:
        asyncio.run(asyncio.sleep(slow if len(self.tokens) == 1 else 0.0))
        return find_mask(self, stop_ids, may_end=may_end)

    monkeypatch.setattr(SumMatcher, "find_mask", find_slowly)
    for num_stages in (1, 2):
        losses: list[str] = []
        options = plan(step_timeout_s=0.15)
        engine = pipeline.PipelineEngine(
            LocalExecutor(openers(make_stages(num_stages)), options), decode, options, losses.append
        )
        await engine.start()
        answer = await collect(engine.submit(ask([1, 2, 3])))
        await engine.stop()
        assert tokens_of(answer) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)
        assert losses == []


async def test_grammar_that_fails_midway_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = SumMatcher.advance

    def fail(self: SumMatcher, tokens: Sequence[int]) -> None:
        advance(self, tokens)
        if self.base == 3 and len(self.tokens) == 2:
            raise BackendFailed("the grammar has become too complex")

    monkeypatch.setattr(SumMatcher, "advance", fail)
    async with running(make_stages(2), plan()) as engine:
        failing, going = engine.submit(ask([1, 2], make_grammar(3))), engine.submit(ask([1, 2, 3]))
        answer = await collect(failing)
        assert end_of(answer) == ("error", "the grammar has become too complex")
        assert len(tokens_of(answer)) == 2
        assert tokens_of(await collect(going)) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


class Maskless(ToyStage):
    @property
    def info(self) -> StageInfo:
        return replace(super().info, capabilities=frozenset())


async def test_stage_without_masks_refuses_a_grammar() -> None:
    async with running([Maskless(TOY)], plan()) as engine:
        with pytest.raises(InvalidRequest, match="draws without masks") as refused:
            engine.submit(ask([1]))
        assert refused.value.param == "grammar"


async def test_failed_step_is_repeated_with_masks_of_its_own() -> None:
    """A failed step's number comes again with fewer rows, which must not take the masks of the failed attempt."""
    fault = Fault("step", at=4, error=BackendFailed("sequence 1 is at fault", "", [SeqId(1)]))
    async with running([FaultStage(TOY.open(num_pages=60), fault)], plan()) as engine:
        streams = [engine.submit(ask(prompt)) for prompt in PROMPTS]
        answers = await asyncio.gather(*map(collect, streams))
    wanted = [expect_answer(TOY, prompt, make_grammar(), HOT) for prompt in PROMPTS]
    found = [tokens_of(answer) for answer in answers]
    assert [end_of(answer)[0] for answer in answers].count("error") == 1
    assert [each == whole[: len(each)] for each, whole in zip(found, wanted, strict=True)] == [True] * 4
    assert sum(each == whole for each, whole in zip(found, wanted, strict=True)) >= 3


@asynccontextmanager
async def losing(num_stages: int, at: int) -> AsyncIterator[pipeline.PipelineEngine]:
    """Run an engine whose last stage is lost once, at its step ``at``."""
    *stages, last = make_stages(num_stages)
    faults = iter([Fault("die", at=at)])

    def open_last() -> Stage:
        return FaultStage(TOY.open(last.info.layers, num_pages=40), *faults)

    options = plan()
    engine = pipeline.PipelineEngine(LocalExecutor([*openers(stages), open_last], options), decode, options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@pytest.mark.parametrize("num_stages", [1, 2])
async def test_answers_go_on_under_their_grammar_after_a_loss(num_stages: int) -> None:
    async with losing(num_stages, at=5) as engine:
        streams = [engine.submit(ask(prompt)) for prompt in PROMPTS]
        answers = await asyncio.gather(*map(collect, streams))
        assert engine.stats()[0].requests_replayed > 0
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert tokens_of(answer) == expect_answer(TOY, prompt, make_grammar(), HOT)


async def test_answer_that_another_engine_began_goes_on_under_its_grammar() -> None:
    whole = expect_answer(TOY, PROMPTS[0], make_grammar(), HOT)
    assert len(whole) > 4
    async with running(make_stages(2), plan()) as engine:
        answer = await collect(engine.submit(ask(PROMPTS[0], delivered=(tuple(whole[:3]),))))
    assert tokens_of(answer) == whole[3:]


async def test_long_prompt_in_chunks_waits_for_one_mask() -> None:
    async with running(make_stages(1), plan(limits=Limits(max_batch_tokens=4))) as engine:
        answer = await collect(engine.submit(ask(PROMPTS[1])))
    assert tokens_of(answer) == expect_answer(TOY, PROMPTS[1], make_grammar(), HOT)


async def test_stages_that_take_steps_ahead_get_the_masks_of_each_step() -> None:
    stage = TOY.open(LayerRange(0, 5), num_pages=60, steps_ahead=3)
    async with running([stage], plan(limits=Limits(max_batch_tokens=4))) as engine:
        streams = [engine.submit(ask(prompt)) for prompt in PROMPTS]
        answers = await asyncio.gather(*map(collect, streams))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert tokens_of(answer) == expect_answer(TOY, prompt, make_grammar(), HOT)


class Panic(BaseException):
    """What a library written in Rust raises when it panics."""


def change_masks(monkeypatch: pytest.MonkeyPatch, base: int, change: Callable[[SumMatcher], None]) -> None:
    """Have something happen before each mask of the grammars with ``base``."""
    find_mask = SumMatcher.find_mask

    def find(self: SumMatcher, stop_ids: frozenset[int], *, may_end: bool) -> bytes:
        if self.base == base:
            change(self)
        return find_mask(self, stop_ids, may_end=may_end)

    monkeypatch.setattr(SumMatcher, "find_mask", find)


class ThreadClock:
    """Clocks that go on when a thread burns time, whether or not it gets a processor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._burnt = threading.local()
        for name in ("perf_counter", "thread_time"):
            monkeypatch.setattr(mask_maker, name, partial(self._read, getattr(time, name)))

    def _read(self, clock: Callable[[], float]) -> float:
        return clock() + float(getattr(self._burnt, "seconds", 0.0))

    def burn(self, seconds: float) -> None:
        self._burnt.seconds = getattr(self._burnt, "seconds", 0.0) + seconds


async def ask_others(engine: pipeline.PipelineEngine) -> None:
    """Check that answers without a grammar, and under one with quick masks, come whole."""
    plain = replace(ask([4, 5], sampling=GREEDY, max_tokens=20), grammar=None, stop_ids=frozenset())
    streams = [engine.submit(plain), engine.submit(ask([1, 2, 3]))]
    answers = await asyncio.gather(*map(collect, streams))
    assert tokens_of(answers[0]) == TOY.continuation([4, 5], 20)
    assert tokens_of(answers[1]) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


@pytest.mark.parametrize(("num_stages", "num_answers"), [(1, 4), (2, 4), (1, 128)])
async def test_others_go_on_while_slow_masks_are_made(
    num_stages: int, num_answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step waited for the masks of all of its draws."""
    may_go_on, is_waiting, clock = threading.Event(), threading.Event(), ThreadClock(monkeypatch)

    def delay(matcher: SumMatcher) -> None:
        if len(matcher.tokens) == 1:
            clock.burn(0.004)
        elif len(matcher.tokens) == 2:
            is_waiting.set()
            may_go_on.wait(20)

    change_masks(monkeypatch, 3, delay)
    slow = make_grammar(3, 6)
    async with running(make_stages(num_stages, 600), plan()) as engine:
        stream = engine.submit(ask([1, 2], slow, n=num_answers))
        await asyncio.to_thread(is_waiting.wait, 20)
        await ask_others(engine)
        may_go_on.set()
        answer = await collect(stream)
    for choice in range(num_answers):
        assert read_answer(answer, choice) == expect_answer(TOY, [1, 2], slow, HOT, choice)


async def test_grammar_that_takes_too_long_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ThreadClock(monkeypatch)
    change_masks(monkeypatch, 3, lambda matcher: clock.burn(0.06 if len(matcher.tokens) == 2 else 0.0))
    async with running(make_stages(1), plan()) as engine:
        answer = await collect(engine.submit(ask([1, 2], make_grammar(3))))
        reason, message = end_of(answer)
        assert (reason, len(tokens_of(answer))) == ("error", 2)
        assert message.startswith("the grammar cannot be followed: a token took 6")
        assert answer[-1].finish is not None
        assert answer[-1].finish.param == "grammar"
        await ask_others(engine)


async def test_panic_of_a_mask_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(matcher: SumMatcher) -> None:
        if len(matcher.tokens) == 2:
            raise Panic("index out of bounds")

    change_masks(monkeypatch, 3, fail)
    async with running(make_stages(2), plan()) as engine:
        answer = await collect(engine.submit(ask([1, 2], make_grammar(3))))
        assert end_of(answer) == ("error", "its grammar cannot be followed: Panic: index out of bounds")
        assert len(tokens_of(answer)) == 2
        await ask_others(engine)


async def test_mask_that_hangs_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_maker, "LIMIT_S", 0.1)
    may_end = threading.Event()

    def hang(matcher: SumMatcher) -> None:
        if len(matcher.tokens) == 2:
            may_end.wait(20)

    change_masks(monkeypatch, 3, hang)
    async with running(make_stages(1), plan()) as engine:
        others = [engine.submit(ask(prompt)) for prompt in PROMPTS]
        hanging = engine.submit(ask([1, 2], make_grammar(3)))
        assert end_of(await collect(hanging)) == ("error", "following the grammar takes more than 0.1 s")
        for prompt, stream in zip(PROMPTS, others, strict=True):
            assert tokens_of(await collect(stream)) == expect_answer(TOY, prompt, make_grammar(), HOT)
        await ask_others(engine)
        may_end.set()


@dataclass(frozen=True)
class WaitingMask:
    """A mask of a client, or one that nobody wants any more."""

    client: bytes = b""
    is_wanted: bool = True

    def make(self) -> bytes:
        return self.client


async def test_clients_have_turns_at_slow_masks() -> None:
    """One who asks for many answers under slow grammars does not hold up another's for as long as all of them take."""
    made: asyncio.Queue[bytes] = asyncio.Queue()
    lane = MaskLane(BoundedThread("test-masks", "counting", 20.0), 1, lambda mask: made.put_nowait(mask.bits))
    wanted = [WaitingMask(b"many")] * 64 + [WaitingMask(b"one")] * 8
    lane.make(cast("list[PendingMask]", wanted))
    assert [await made.get() for _ in range(16)] == [b"many", b"one"] * 8
    lane.close()


async def test_masks_that_wait_go_to_another_thread_when_one_of_their_request_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first masks of a request are taken to be quick: 128 of them held up those of others."""
    threads: list[str] = []
    clock = ThreadClock(monkeypatch)

    def delay(_: SumMatcher) -> None:
        clock.burn(0.004)
        threads.append(threading.current_thread().name)

    change_masks(monkeypatch, 4, delay)  # the thread of another test may still have masks of the others to make
    slow = make_grammar(4, 1)
    async with running(make_stages(1, 600), plan()) as engine:
        answer = await collect(engine.submit(ask([1, 2], slow, n=32)))
    for choice in range(32):
        assert read_answer(answer, choice) == expect_answer(TOY, [1, 2], slow, HOT, choice)
    assert (threads[0], set(threads[1:])) == ("parallax-masks", {"parallax-slow-masks"})


def test_mask_of_an_answer_that_is_over_is_not_made() -> None:
    """A thread that waits for a processor made it in the end, after its engine had stopped."""

    made: list[mask_maker.MadeMask] = []
    mask_maker.make_masks([cast("PendingMask", WaitingMask(b"gone", is_wanted=False))], made)
    assert [(each.bits, each.error) for each in made] == [(b"", None)]


async def test_error_where_a_mask_is_handed_over_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in the event loop, and its answer waited for ever."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Head, "give_mask", fail)
    async with running(make_stages(1), plan()) as engine:
        reason, message = end_of(await collect(engine.submit(ask([1, 2, 3]))))
        assert reason == "error"
        assert "a bug" in message
