"""How outputs of vLLM become deltas, and how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from parallax_backend_vllm.stats import Recorder
from parallax_backend_vllm.stream import VllmStream
from parallax_core.api import Delta, Request, RequestId, Sampling, TokenLogprob


@dataclass
class Logprob:
    """An entry as vLLM gives it."""

    logprob: float
    rank: int


@dataclass
class Answer:
    """A ``CompletionOutput``."""

    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[dict[int, Logprob]] | None = None


@dataclass
class Output:
    """A ``RequestOutput``."""

    outputs: list[Answer]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None


@dataclass
class Source:
    """What vLLM answers, and whether the request was aborted."""

    outputs: list[Output]
    hangs: bool = False
    error: Exception | None = None
    aborted: list[bool] = field(default_factory=list)

    async def generate(self) -> AsyncGenerator[Any, None]:
        try:
            for output in self.outputs:
                yield output
            if self.error is not None:
                raise self.error
            if self.hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.aborted.append(True)
            raise


def ask(**changes: Any) -> Request:
    return Request(id=RequestId("a"), prompt=(1, 2, 3), max_tokens=9, sampling=Sampling(), **changes)


def make_stream(request: Request, *sources: Source) -> tuple[VllmStream, list[VllmStream]]:
    ended: list[VllmStream] = []
    return VllmStream(request, [source.generate() for source in sources], ended.append), ended


async def collect(stream: VllmStream) -> list[Delta]:
    return [delta async for delta in stream]


async def test_deltas_have_tokens_scores_and_one_finish() -> None:
    scores = [{7: Logprob(-0.5, 2), 8: Logprob(-0.1, 1)}]
    prompt = [None, {2: Logprob(-1.0, 1)}, {3: Logprob(-2.0, 1)}]
    source = Source(
        [
            Output([Answer([7], None, scores)], prompt, 2),
            Output([Answer([7, 7], "length", scores * 2)], None, 2),
        ]
    )
    stream, ended = make_stream(ask(logprobs=1, prompt_logprobs=0), source)
    first, last = await collect(stream)
    assert first.tokens == (7,)
    assert first.logprobs == (TokenLogprob(7, -0.5, ((8, -0.1),)),)
    assert first.prompt_logprobs == (TokenLogprob(2, -1.0), TokenLogprob(3, -2.0))
    assert (first.cached_tokens, first.finish, last.ended) == (2, None, "length")
    assert last.finish is not None
    assert (last.finish.reason, last.finish.output_tokens, last.finish.cached_tokens) == ("length", 3, 2)
    assert ended == [stream]


async def test_answers_end_one_by_one_and_the_request_with_the_last() -> None:
    sources = [Source([Output([Answer([number], "stop")])]) for number in range(3)]
    stream, _ = make_stream(ask(n=3), *sources)
    deltas = await collect(stream)
    assert [delta.ended for delta in deltas] == ["stop"] * 3
    assert [delta.finish is not None for delta in deltas] == [False, False, True]


async def test_closed_stream_is_aborted_in_vllm() -> None:
    source = Source([Output([Answer([1])])], hangs=True)
    stream, ended = make_stream(ask(), source)
    async for _ in stream:
        stream.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert source.aborted == [True]
    assert ended == [stream]
    stream.close()


async def test_error_of_vllm_ends_the_stream_with_its_words() -> None:
    source = Source([], error=RuntimeError("EngineCore encountered an issue.\nSee stack trace"))
    stream, _ = make_stream(ask(), source)
    [delta] = await collect(stream)
    assert delta.finish is not None
    assert (delta.finish.reason, delta.finish.message) == ("error", "vLLM failed: EngineCore encountered an issue.")


async def test_answer_that_vllm_gives_up_is_an_error_for_its_client() -> None:
    stream, _ = make_stream(ask(), Source([Output([Answer([1], "abort")])]))
    [delta] = await collect(stream)
    assert delta.finish is not None
    assert delta.finish.reason == "aborted"
    stream, _ = make_stream(ask(), Source([]))
    [delta] = await collect(stream)
    assert delta.finish is not None
    assert delta.finish.message == "vLLM ended the answer without a reason"


@dataclass
class Steps:
    """Statistics as vLLM reports them."""

    num_running_reqs: int = 2
    num_waiting_reqs: int = 3
    kv_cache_usage: float = 0.25
    num_generation_tokens: int = 4
    num_preempted_reqs: int = 1


def test_statistics_are_added_up() -> None:
    recorder = Recorder(num_blocks=100)
    for _ in range(2):
        recorder.record(Steps(), Steps())
    recorder.record(None, None)
    stats = recorder.read(num_open=2)
    assert (stats.steps, stats.output_tokens, stats.preemptions) == (2, 8, 2)
    assert (stats.running, stats.waiting, stats.pools[0].used, stats.pools[0].total) == (2, 2, 25, 100)
    assert recorder.read(num_open=0).running == 0
