from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import pytest
from fastapi.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope

from parallax_core.base.errors import BackendFailed, InvalidRequest, RequestTimeout, Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Finish, Reason, Request, Stream, TokenLogprob
from parallax_core.contracts.sample import Sampling
from parallax_core.node.pipeline.unread import DELTA_BYTES, UnreadOutput
from parallax_core.server.body_messages import ResponseForm
from parallax_core.server.errors import ClientGone
from parallax_core.server.merged_streams import StreamClosed
from parallax_core.server.meters import Meters, RequestMeters
from parallax_core.server.response import (
    AS_IT_COMES,
    CACHE_BLOCK,
    DEFAULT_TIMEOUT,
    ResponseFlow,
    SseResponse,
    StreamProgress,
    TokenCounts,
    answer_whole,
    while_connected,
)
from tests.unit.node.cluster import soon

STOP = 7


class GivenStream:
    """Yields prepared deltas, and then waits to be closed unless the last has a finish."""

    def __init__(self, deltas: list[Delta]) -> None:
        self._deltas = deltas
        self.closed = asyncio.Event()
        self.num_closed = 0

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self._deltas:
            await asyncio.sleep(0)
            if self.closed.is_set():
                return
            yield delta
        if not self._deltas or self._deltas[-1].finish is None:
            await self.closed.wait()

    def close(self) -> None:
        self.num_closed += 1
        self.closed.set()


class GivenEngine:
    """Gives each request the next prepared answer; None refuses the request."""

    def __init__(self, *answers: list[Delta] | None) -> None:
        self._answers = iter(answers)
        self.streams: list[GivenStream] = []

    def submit(self, request: Request) -> Stream:
        answer = next(self._answers)
        if answer is None:
            raise Unavailable(f"no room for {request.id}")
        self.streams.append(GivenStream(answer))
        return self.streams[-1]


class Count:
    """What the meters of requests are told: how many have begun and how many are over."""

    def __init__(self) -> None:
        self.begun = self.over = 0

    def begin(self) -> RequestMeters:
        self.begun += 1
        return Meters().begin(0.0, "", self.end)

    def end(self) -> None:
        self.over += 1


def ask(**given: Any) -> Request:
    fields = {"id": RequestId("1"), "prompt": (1, 2, 3), "max_tokens": 4, "sampling": Sampling(), **given}
    return Request(**fields)


def finish(reason: Reason = "stop", **given: Any) -> Finish:
    return Finish(**{"reason": reason, "prompt_tokens": 3, "output_tokens": 2, **given})


def answer(*tokens: int, **given: Any) -> list[Delta]:
    """Return the deltas of an answer with a finish."""
    *first, last = tokens
    return [*(Delta(tokens=(token,)) for token in first), Delta(tokens=(last,), ended="stop", finish=finish(**given))]


async def submit(*answers: list[Delta] | None, **given: Any) -> tuple[ResponseFlow, GivenEngine, Count]:
    engine: Any = GivenEngine(*answers)
    count = Count()
    requests = [ask(**given) for _ in answers]
    return await ResponseFlow.submit(engine, requests, count.begin, UnreadOutput(4 * 2**20)), engine, count


async def read(deltas: AsyncIterator[tuple[int, Delta]]) -> list[tuple[int, Delta]]:
    async def collect() -> list[tuple[int, Delta]]:
        return [pair async for pair in deltas]

    return await soon(collect())


async def test_answers_of_several_requests_are_merged_and_their_tokens_added() -> None:
    flow, engine, count = await submit(
        answer(4, 5, cached_tokens=2 * CACHE_BLOCK - 1, pinned_tokens=2), answer(6, cached_tokens=CACHE_BLOCK)
    )
    found = await read(flow.read())
    assert [delta.tokens for number, delta in found if number == 0] == [(4,), (5,)]
    assert [delta.tokens for number, delta in found if number == 1] == [(6,)]
    assert flow.count_tokens() == TokenCounts(prompt=6, cached=2 * CACHE_BLOCK, output=4, pinned=2)
    assert (count.begun, count.over) == (2, 2)
    flow.close()
    assert [stream.num_closed for stream in engine.streams] == [1, 1]
    assert count.over == 2, "they were over already"


async def test_request_that_is_refused_ends_those_before_it() -> None:
    engine: Any = GivenEngine(answer(4), None)
    count = Count()
    with pytest.raises(Unavailable, match="no room"):
        await ResponseFlow.submit(engine, [ask(), ask(), ask()], count.begin)
    assert [stream.num_closed for stream in engine.streams] == [1]
    assert (count.begun, count.over) == (2, 1)


@pytest.mark.parametrize("num_requests", [1, 2])
async def test_answers_that_are_stopped_end_where_they_are(num_requests: int) -> None:
    flow, engine, _ = await submit(
        *([[Delta(tokens=(4, 5)), Delta(tokens=(6,), index=1, ended="length")]] * num_requests), n=3
    )
    found: list[tuple[int, Delta]] = []
    async for number, delta in flow.read():
        found.append((number, delta))
        if len(found) == 2 * num_requests:
            flow.stop()
    ends = [(number, delta.index, delta.ended) for number, delta in found[2 * num_requests :]]
    assert ends == [(number, index, "stop") for number in range(num_requests) for index in (0, 2)]
    assert all(stream.num_closed for stream in engine.streams)
    assert flow.count_tokens() == TokenCounts(3 * num_requests, 0, 3 * num_requests, 0)


async def test_answer_that_has_ended_is_not_ended_again_by_a_stop() -> None:
    flow, _, _ = await submit(answer(4, 5))
    assert len(await read(flow.read())) == 2
    flow.stop()
    assert flow.count_tokens() == TokenCounts(3, 0, 2, 0)


async def test_stream_that_is_closed_by_others_is_an_error_where_several_are_merged() -> None:
    flow, engine, _ = await submit([Delta(tokens=(4,))], answer(5))
    engine.streams[0].close()
    with pytest.raises(StreamClosed):
        await read(flow.read())


def entry(token: int) -> TokenLogprob:
    return TokenLogprob(token, -0.5)


async def test_log_probability_of_a_stop_token_is_left_out_and_only_at_the_end() -> None:
    deltas = [
        Delta(tokens=(STOP,), logprobs=(entry(STOP),)),
        Delta(tokens=(4, STOP), logprobs=(entry(4), entry(STOP)), ended="stop"),
        Delta(tokens=(4,), index=1, logprobs=(entry(4),), ended="length", finish=finish()),
    ]
    flow, _, _ = await submit(deltas, stop_ids=frozenset({STOP}), n=2)
    found = [delta.logprobs for _, delta in await read(flow.read())]
    assert found == [(entry(STOP),), (entry(4),), (entry(4),)]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"reason": "error", "message": "it broke"}, BackendFailed, "it broke"),
        ({"reason": "timeout", "message": "too late"}, RequestTimeout, "too late"),
        ({"reason": "aborted", "message": "going down"}, Unavailable, "going down"),
        ({"reason": "error", "message": "too long", "param": "max_tokens"}, InvalidRequest, "too long"),
    ],
)
async def test_answer_that_failed_raises_its_error(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    flow, _, _ = await submit(answer(4, **given))
    flow.form = ResponseForm(model="toy", num_answers=1, length_field="max_completion_tokens")
    with pytest.raises(kind, match=message) as caught:
        await read(flow.read())
    if isinstance(caught.value, InvalidRequest):
        assert caught.value.param == "max_completion_tokens"
    assert flow.count_tokens() == TokenCounts(0, 0, 0, 0)


async def test_time_that_the_server_limits_is_explained() -> None:
    for passed_s, hint in ((1.0, DEFAULT_TIMEOUT), (-60.0, "")):
        flow, _, _ = await submit(answer(4, reason="timeout", message="too late"))
        flow.default_end = time.monotonic() - passed_s
        with pytest.raises(RequestTimeout) as caught:
            await read(flow.read())
        assert caught.value.hint == hint


async def test_collected_answer_counts_as_unread_until_it_is_closed() -> None:
    backlog = UnreadOutput()
    engine: Any = GivenEngine(answer(4, 5))
    flow = await ResponseFlow.submit(engine, [ask()], Count().begin, backlog)
    closed: list[int] = []
    flow.on_close = lambda: closed.append(backlog.num_bytes)
    await read(flow.collect())
    assert backlog.num_bytes == flow.unread == 2 * DELTA_BYTES
    flow.close()
    flow.close()
    assert (backlog.num_bytes, flow.unread, closed) == (0, 0, [2 * DELTA_BYTES, 0])


@pytest.mark.parametrize("num_requests", [1, 2])
async def test_answer_that_is_too_large_to_be_kept_is_refused(num_requests: int) -> None:
    large = [Delta(text="x" * 2**19, tokens=(4,)), *answer(5)]
    flow, engine, count = await submit(*([large] * num_requests))
    with pytest.raises(InvalidRequest, match="too large to be sent whole: its client has left 1 MiB of it") as caught:
        await read(flow.collect())
    assert (caught.value.param, caught.value.hint) == ("stream", "ask for less, or send 'stream': true")
    assert all(stream.num_closed for stream in engine.streams)
    assert (flow.unread, count.over) == (0, num_requests)


async def test_stream_that_ends_without_a_word_is_an_error_unless_it_was_cut() -> None:
    flow, engine, _ = await submit([Delta(tokens=(4,))], [Delta(tokens=(5,))])
    for stream in engine.streams:
        stream.close()
    with pytest.raises(StreamClosed):
        await read(flow.collect())


def test_progress_knows_which_answers_are_open() -> None:
    progress = StreamProgress(3, {0, 1, 2})
    progress.note(Delta(tokens=(4, 5), index=1))
    progress.note(Delta(tokens=(6,), index=1, ended="length"))
    progress.note(Delta(tokens=(6,), index=1))
    assert (progress.open, progress.num_output) == ({0, 2}, 4)
    assert progress.finish() == Finish(reason="stop", prompt_tokens=3, output_tokens=4)
    progress.note(Delta(finish=finish()))
    assert progress.open == set()


SCOPE: Scope = {"type": "http", "method": "POST", "headers": [], "asgi": {"spec_version": "2.4"}}


class Source:
    """Counts how often it is closed."""

    def __init__(self) -> None:
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


class Receiver:
    """A client that stays until it leaves, and keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self._received: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive(self) -> Message:
        if self._received:
            return self._received.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_events_are_sent_as_they_come_and_their_source_is_closed() -> None:
    async def write() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        assert source.num_closed == 0
        yield b"data: 2\n\n"

    source, client = Source(), Receiver()
    await SseResponse(write(), source)(SCOPE, client.receive, client.send)
    headers = dict(client.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert {name: headers[name.lower().encode()].decode() for name in AS_IT_COMES} == AS_IT_COMES
    assert client.body == b"data: 1\n\ndata: 2\n\n"
    assert source.num_closed == 1


async def test_events_without_a_source_are_sent_all_the_same() -> None:
    async def write() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    client = Receiver()
    await SseResponse(write())(SCOPE, client.receive, client.send)
    assert client.body == b"data: 1\n\n"


async def test_whole_answer_is_sent_before_its_source_is_closed() -> None:
    class Answer(PlainTextResponse):
        async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
            assert source.num_closed == 0
            await super().__call__(scope, receive, send)

    async def collect() -> Response:
        return Answer("all of it")

    source, client = Source(), Receiver()
    http = fastapi.Request(SCOPE, client.receive)
    whole = await soon(answer_whole(http, collect(), source))
    assert source.num_closed == 0
    await whole(SCOPE, client.receive, client.send)
    assert (client.body, source.num_closed) == (b"all of it", 1)


async def test_work_ends_with_its_client_and_its_error_is_raised() -> None:
    ended: list[str] = []

    async def work_for_ever() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        raise AssertionError("it never ends")

    async def fail() -> Response:
        raise Unavailable("not now")

    source, client = Source(), Receiver()
    http = fastapi.Request(SCOPE, client.receive)
    with pytest.raises(Unavailable, match="not now"):
        await soon(answer_whole(http, fail(), source))
    assert source.num_closed == 1
    assert await soon(while_connected(http, asyncio.sleep(0, "done"))) == "done"
    waiting = asyncio.create_task(answer_whole(http, work_for_ever(), source))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    client.gone.set()
    with pytest.raises(ClientGone):
        await soon(waiting)
    await asyncio.sleep(0)
    assert (ended, source.num_closed) == (["cancelled"], 2)


async def test_error_that_ends_a_stream_is_counted_once() -> None:
    class Counter:
        def __init__(self) -> None:
            self.kinds: list[str] = []

        def count_error(self, kind: str) -> None:
            self.kinds.append(kind)

        def begin(self, arrived: float, parent: str) -> None:
            return None

    meters, counter = Meters(), Counter()
    meters.all.append(counter)  # type: ignore[arg-type]  # it measures no requests
    engine: Any = GivenEngine(answer(4), answer(5))
    flow = await ResponseFlow.submit(engine, [ask(), ask()], lambda: meters.begin(0.0, "", lambda: None))
    flow.count_error(408)
    assert counter.kinds == ["timeout_error"]
    flow.close()
