from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import (
    BackendFailed,
    Delta,
    Grammar,
    InvalidRequest,
    LayerRange,
    Request,
    RequestId,
    Sampling,
    SeqId,
    Stage,
    StageInfo,
)
from parallax_core.engine.limits import Limits
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline import engine as pipeline
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from tests.support.grammars import STOP, SumCompiler, SumMatcher, expect_answer, make_grammar
from tests.unit.node.pipeline.local import collect, decode, end_of, make_stages, openers, running, tokens_of

TOY = Toy(("full", "window", "full", "full", "window"))
HOT = Sampling(temperature=3.0, seed=8)
PROMPTS = ([1, 2, 3], list(range(30)), [7] * 11, [4])


def plan(compiler: SumCompiler | None = None, **fields: Any) -> PipelineOptions:
    return replace(PipelineOptions(grammars=compiler or SumCompiler(), heartbeat_s=0.02), **fields)


def ask(prompt: Sequence[int], grammar: Grammar | None = None, **fields: Any) -> Request:
    request = Request(
        id=RequestId(f"{id(prompt)}-{len(NAMES)}"),
        prompt=tuple(prompt),
        max_tokens=25,
        sampling=HOT,
        stop_ids=frozenset({STOP}),
        grammar=grammar or make_grammar(),
    )
    NAMES.append(request.id)
    return replace(request, **fields)


NAMES: list[str] = []


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


async def test_others_go_on_while_a_grammar_is_compiled() -> None:
    compiler = SumCompiler()
    compiler.may_go_on.clear()
    async with running(make_stages(1), plan(compiler)) as engine:
        waiting = engine.submit(ask([1, 2, 3]))
        other = await collect(engine.submit(replace(ask([4, 5], sampling=GREEDY, max_tokens=6), grammar=None)))
        assert tokens_of(other) == TOY.continuation([4, 5], 6)
        compiler.may_go_on.set()
        assert tokens_of(await collect(waiting)) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


async def test_grammar_is_compiled_once_for_many_requests() -> None:
    compiler = SumCompiler()
    async with running(make_stages(1), plan(compiler)) as engine:
        for _ in range(3):
            await collect(engine.submit(ask([1, 2, 3])))
    assert compiler.num_compiled == 1


async def test_grammar_that_cannot_be_compiled_ends_its_request_alone() -> None:
    async with running(make_stages(1), plan()) as engine:
        wrong, right = engine.submit(ask([1], Grammar(kind="lark", source="?"))), engine.submit(ask([1, 2, 3]))
        assert end_of(await collect(wrong)) == ("error", "the grammar is not two numbers")
        assert tokens_of(await collect(right)) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


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


async def test_request_that_expires_while_its_grammar_is_compiled_ends() -> None:
    compiler = SumCompiler()
    compiler.may_go_on.clear()
    async with running(make_stages(1), plan(compiler)) as engine:
        answer = await collect(engine.submit(ask([1, 2, 3], timeout_s=0.05)))
        compiler.may_go_on.set()
    assert end_of(answer)[0] == "timeout"


async def test_request_with_a_grammar_is_refused_where_it_cannot_be_followed() -> None:
    async with running(make_stages(1), PipelineOptions()) as engine:
        with pytest.raises(InvalidRequest, match="without a compiler of grammars") as refused:
            engine.submit(ask([1]))
        assert refused.value.param == "grammar"
    async with running(make_stages(1), plan()) as engine:
        with pytest.raises(InvalidRequest, match="needs a token that ends the answer"):
            engine.submit(ask([1], stop_ids=frozenset()))


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
