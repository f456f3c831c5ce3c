"""A pipeline goes on after it lost a stage of this process, or says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from parallax_core.api import (
    Sampling,
    Stage,
    Unavailable,
)
from parallax_core.base.errors import StageLost
from parallax_core.engine.head import Head
from parallax_core.node import backoff
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.fault import Fault, FaultKind, FaultStage
from parallax_core.testing.toy import GREEDY
from tests.unit.node.pipeline.local import (
    PATIENCE_S,
    TOY,
    collect,
    decode,
    end_of,
    make_request,
    make_stages,
    openers,
    running,
    started,
    tokens_of,
)

SAMPLINGS = (GREEDY, Sampling(seed=3, frequency_penalty=1.0, min_tokens=5))


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("kind", ["edit", "free", "die"])
async def test_streams_go_on_after_a_stage_is_lost_and_opened_again(bad: int, kind: FaultKind) -> None:
    stages: list[Stage] = list(make_stages(3))
    stages[bad] = FaultStage(stages[bad], Fault(kind, at=2))
    executor = LocalExecutor([partial(reopen, stages, number) for number in range(3)])
    reasons: list[str] = []
    async with started(PipelineEngine(executor, decode, None, reasons.append)) as engine:
        requests = [make_request([number], 40, SAMPLINGS[number % 2]) for number in range(6)]
        answers = await asyncio.gather(*(collect(engine.submit(request)) for request in requests))
        for request, deltas in zip(requests, answers, strict=True):
            assert end_of(deltas) == ("length", "")
            assert tokens_of(deltas) == TOY.continuation(request.prompt, 40, request.sampling)
            assert "".join(delta.text for delta in deltas) == decode(tokens_of(deltas))
        assert engine.health().state == "ready"
        assert engine.describe()[0].num_losses == 1
        [stats] = engine.stats()
        assert (stats.prompt_tokens, stats.output_tokens) == (6, 240)
    [reason] = reasons
    assert reason.startswith(f"a stage was lost, and is being replaced: stage {bad} of 3 is lost: ")


def reopen(stages: list[Stage], number: int) -> Stage:
    """Return a stage: at first the one given, and later one like it without faults."""
    stage = stages[number]
    stages[number] = make_stages(3)[number]
    return stage


async def test_stages_of_this_process_are_given_up_when_nothing_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0,))
    executor = LocalExecutor([lambda: FaultStage(TOY.open(), Fault("die", at=0))])
    async with started(PipelineEngine(executor, decode)) as engine:
        reason, message = end_of(await collect(engine.submit(make_request([1]))))
        assert (reason, message) == ("error", "a stage was lost 3 times in a row while it computed this request")
        assert engine.health().state == "ready", "it is the request that ends, so that others are served"
        reason, message = end_of(await collect(engine.submit(make_request([1]))))
        assert (reason, message[:39]) == ("error", "given up after 5 failures in a row: a s")
        assert engine.health().state == "failed"
        with pytest.raises(Unavailable, match="the engine is failed"):
            engine.submit(make_request([1]))


async def test_any_error_while_a_pipeline_is_built_anew_is_followed_by_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0, 0.01))
    answers: list[Stage | Exception] = [
        FaultStage(TOY.open(), Fault("die", at=1)),
        KeyError("worker/0/0"),
        OSError("too many open files"),
        TOY.open(),
    ]

    def open_stage() -> Stage:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with started(PipelineEngine(LocalExecutor([open_stage]), decode)) as engine:
        assert tokens_of(await collect(engine.submit(make_request([1], 9)))) == TOY.continuation([1], 9)
    assert answers == []


async def test_stage_that_hangs_is_found_out_and_its_engine_fails(caplog: pytest.LogCaptureFixture) -> None:
    hanging = FaultStage(TOY.open(), Fault("hang", at=2))
    plan = PipelineOptions(heartbeat_s=0.02, step_timeout_s=0.3)
    async with running([hanging], plan) as engine:
        begun = asyncio.get_running_loop().time()
        reason, message = end_of(await collect(engine.submit(make_request([1], 20))))
        assert (reason, message[:28]) == ("error", "the thread of stage 0 hangs,")
        assert asyncio.get_running_loop().time() - begun < 5
        assert "stage 0 of 1 is lost: it has computed step 3 for 0.3" in caplog.text
        assert "and may for 0.3 s" in caplog.text
        assert (engine.health().state, engine.health().reason) == ("failed", message)
        assert "self._released.wait()" in caplog.text, "the log says where it hangs"
        hanging.release()


async def test_step_that_takes_long_and_no_longer_than_it_may_is_left_alone() -> None:
    hanging = FaultStage(TOY.open(), Fault("hang", at=2))
    async with running([hanging], PipelineOptions(heartbeat_s=0.01, step_timeout_s=3600)) as engine:
        asking = asyncio.create_task(collect(engine.submit(make_request([1], 10))))
        await asyncio.to_thread(hanging.hanging.wait, PATIENCE_S)
        await asyncio.sleep(0.1)
        hanging.release()
        assert tokens_of(await asking) == TOY.continuation([1], 10)


async def test_loss_that_cannot_be_explained_is_healed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[Stage] = [FaultStage(TOY.open(), Fault("die", at=0))]
    executor = LocalExecutor([lambda: stages.pop() if stages else TOY.open()])

    async def explain(loss: StageLost) -> StageLost:
        raise KeyError("worker/0/0")

    monkeypatch.setattr(executor, "explain", explain)
    async with started(PipelineEngine(executor, decode)) as engine:
        assert tokens_of(await collect(engine.submit(make_request([1])))) == TOY.continuation([1], 4)


async def test_streams_end_when_the_head_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(make_stages(2)) as engine:
        stream = engine.submit(make_request([1], 40))
        async for _ in stream:
            break
        monkeypatch.setattr(Head, "plan", lambda head, now: 1 / 0)
        monkeypatch.setattr(Head, "cancel", lambda head, request_id: 1 / 0)  # it is good for nothing any more
        reason, message = end_of(await collect(stream))
        assert (reason, message) == ("error", "ZeroDivisionError: division by zero")
        assert engine.health().state == "failed"


class Panic(BaseException):
    """What a library written in Rust raises when it panics."""


async def test_panic_of_a_decoder_ends_its_request_alone() -> None:
    def decode_most(tokens: Sequence[int]) -> str:
        if len(tokens) > 1 and tokens[-1] == bad:
            raise Panic("retry-limit-in-match over")
        return decode(tokens)

    prompts, bad = [[number, 7] for number in range(4)], TOY.continuation([2, 7], 3)[2]
    expected = [TOY.continuation(prompt, 12) for prompt in prompts]
    assert [bad in tokens[1:] for tokens in expected] == [False, False, True, False]
    async with started(PipelineEngine(LocalExecutor(openers(make_stages(2))), decode_most)) as engine:
        streams = [engine.submit(make_request(prompt, 12)) for prompt in prompts]
        answers = await asyncio.gather(*map(collect, streams))
        assert engine.health().state == "ready"
        assert engine.stats()[0].running == 0
    for prompt, answer, tokens in zip(prompts, answers, expected, strict=True):
        if prompt != [2, 7]:
            assert tokens_of(answer) == tokens
            continue
        message = "the model's tokenizer fails on this answer: Panic: retry-limit-in-match over"
        assert end_of(answer) == ("error", message)
        assert tokens_of(answer) == tokens[:2]


async def test_observer_of_losses_that_fails_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tell(reason: str) -> None:
        told.append(reason)
        raise RuntimeError("the observer is broken")

    async with started(PipelineEngine(LocalExecutor(openers(make_stages(1))), decode, on_lost=tell)) as engine:
        monkeypatch.setattr(Head, "plan", lambda head, now: 1 / 0)
        assert end_of(await collect(engine.submit(make_request([1]))))[0] == "error"
    assert told == ["ZeroDivisionError: division by zero"]
