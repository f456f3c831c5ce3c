from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from parallax_core.api import Delta, ParallaxError, Request, RequestId, Sampling, Stage, StageBatch, Stream, Unavailable
from parallax_core.base.errors import BackendFailed
from parallax_core.node.pipeline import PipelineEngine
from tests.toy import ToyStage, continuation

NUMBERS = count()


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_request(prompt: list[int], max_tokens: int = 4) -> Request:
    return Request(id=RequestId(str(next(NUMBERS))), prompt=tuple(prompt), max_tokens=max_tokens, sampling=Sampling())


async def collect(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream]


@asynccontextmanager
async def running(open_stage: Callable[[], Stage]) -> AsyncIterator[PipelineEngine]:
    engine = PipelineEngine([open_stage], decode)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def tokens_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


async def test_engine_serves_many_at_once() -> None:
    stage = ToyStage()
    prompts = [[number, number + 1] for number in range(20)]
    async with running(lambda: stage) as engine:
        answers = await asyncio.gather(*(collect(engine.submit(make_request(prompt))) for prompt in prompts))
    assert [tokens_of(answer) for answer in answers] == [continuation(prompt, 4) for prompt in prompts]
    assert stage.closed


async def test_engine_drops_a_closed_stream_and_serves_the_others() -> None:
    stage = ToyStage(context=60, num_pages=40)
    async with running(lambda: stage) as engine:
        closed = engine.submit(make_request([1], max_tokens=50))
        other = engine.submit(make_request([2], max_tokens=50))
        async for _ in closed:
            closed.close()
            break
        assert tokens_of(await collect(other)) == continuation([2], 50)
        assert tokens_of(await collect(engine.submit(make_request([3])))) == continuation([3], 4)
        closed.close()


async def test_engine_that_cannot_open_its_stage_says_why_and_leaves_no_thread() -> None:
    def open_stage() -> Stage:
        message = "no such model"
        raise ParallaxError(message, "name another")

    before = set(threading.enumerate())
    engine = PipelineEngine([open_stage], decode)
    with pytest.raises(ParallaxError, match="no such model"):
        await engine.start()
    assert engine.health().state == "failed"
    await engine.stop()
    await asyncio.sleep(0.1)
    assert set(threading.enumerate()) <= before


async def test_engine_hides_no_bug_of_a_backend() -> None:
    def open_stage() -> Stage:
        stages: dict[str, Stage] = {}
        return stages["stage"]

    with pytest.raises(BackendFailed, match="KeyError: 'stage'"):
        await PipelineEngine([open_stage], decode).start()


async def test_failed_step_ends_its_requests_with_an_error_and_no_others() -> None:
    stage = ToyStage()

    def fail(batch: StageBatch) -> None:
        if any(13 in row.tokens for row in batch.rows):
            message = "unlucky"
            raise OSError(message)

    stage.before_step = fail
    async with running(lambda: stage) as engine:
        [delta] = await collect(engine.submit(make_request([13])))
        assert delta.finish is not None
        assert delta.finish.reason == "error"
        assert "unlucky" in delta.finish.message
        assert engine.health().state == "ready"
        assert tokens_of(await collect(engine.submit(make_request([3], 2)))) == continuation([3], 2)


@pytest.mark.parametrize("kind", [RuntimeError, BackendFailed])
async def test_stage_that_cannot_be_edited_is_lost_and_every_stream_ends(kind: type[Exception]) -> None:
    class Lost(ToyStage):
        def edit(self, edits: object) -> None:
            message = "gone"
            raise kind(message)

    async with running(Lost) as engine:
        [delta] = await collect(engine.submit(make_request([1])))
        assert delta.finish is not None
        assert delta.finish.reason == "error"
        assert engine.health().state == "failed"
        with pytest.raises(Unavailable):
            engine.submit(make_request([1]))


async def test_stop_ends_every_stream_even_while_a_step_hangs() -> None:
    stage, entered, release = ToyStage(), threading.Event(), threading.Event()

    def hang(batch: StageBatch) -> None:
        del batch
        entered.set()
        release.wait(20)

    stage.before_step = hang
    engine = PipelineEngine([lambda: stage], decode)
    await engine.start()
    stream = engine.submit(make_request([1]))
    await asyncio.to_thread(entered.wait)
    await asyncio.wait_for(engine.stop(), timeout=3)
    [delta] = await collect(stream)
    assert delta.finish is not None
    assert delta.finish.reason == "aborted"
    await engine.stop()
    release.set()


async def test_engine_takes_nothing_before_it_is_ready_or_after_it_stopped() -> None:
    engine = PipelineEngine([ToyStage], decode)
    with pytest.raises(Unavailable, match="starting"):
        engine.submit(make_request([1]))
    await engine.start()
    await engine.stop()
    with pytest.raises(Unavailable, match="draining"):
        engine.submit(make_request([1]))


async def test_start_that_is_cancelled_closes_the_stage_it_opens() -> None:
    stage, release = ToyStage(), threading.Event()

    def open_slowly() -> Stage:
        release.wait(20)
        return stage

    before = set(threading.enumerate())
    engine = PipelineEngine([open_slowly], decode)
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    await engine.stop()
    with pytest.raises(asyncio.CancelledError):
        await starting
    release.set()
    await asyncio.sleep(0.1)
    assert stage.closed
    assert set(threading.enumerate()) <= before
