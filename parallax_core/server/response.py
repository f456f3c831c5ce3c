"""Passes the answers of one HTTP request from the engine to the client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import fastapi
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from parallax_core.base.errors import BackendFailed, InvalidRequest, RequestTimeout, Unavailable
from parallax_core.contracts.engine import Delta, Engine, Finish, Request, Stream
from parallax_core.node.pipeline.unread import UnreadOutput, weigh
from parallax_core.server.body_messages import ParsedBody, ResponseForm
from parallax_core.server.errors import ClientGone
from parallax_core.server.field_names import name_api_field
from parallax_core.server.merged_streams import StreamClosed, merge
from parallax_core.server.meters import RequestMeters
from parallax_core.server.sse import COMMENT, SILENCE_S, KeepAlive

T = TypeVar("T")

AS_IT_COMES = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that stop proxies (the latter: nginx) from buffering a stream."""

CACHE_BLOCK = 32
"""The tokens of a prompt that were cached are reported in blocks of this size: an exact number would tell a client,
token by token, what others with whom it shares a cache have sent."""

DEFAULT_TIMEOUT = "that is the server's default_timeout: send a longer 'timeout'"
"""The hint for a request that set no ``timeout`` and took too long."""


class TokenCounts(NamedTuple):
    """The token counts of a response."""

    prompt: int
    cached: int
    """Tokens of the prompt that the prefix cache had, in whole blocks."""
    output: int
    pinned: int = 0
    """Tokens of the prompt that a pin keeps in the prefix cache."""


@dataclass(slots=True)
class StreamProgress:
    """The progress of one request."""

    num_prompt: int
    open: set[int]
    """The answers that have not ended."""
    num_output: int = 0

    def note(self, delta: Delta) -> None:
        """Record a delta."""
        self.num_output += len(delta.tokens)
        if delta.ended is not None:
            self.open.discard(delta.index)
        if delta.finish is not None:
            self.open.clear()

    def finish(self) -> Finish:
        """Return the finish of a request that was stopped."""
        return Finish(reason="stop", prompt_tokens=self.num_prompt, output_tokens=self.num_output)


class ResponseFlow:
    """The streams of all requests of one body, merged; an `UnreadStream` for the deltas it collects."""

    def __init__(self, backlog: UnreadOutput | None = None) -> None:
        self._stop_ids = frozenset[int]()
        self._meters: list[RequestMeters] = []
        self._streams: list[Stream] = []
        self._finishes: list[Finish] = []
        self._backlog = backlog or UnreadOutput()
        self._excess = ""
        self.form: ResponseForm | None = None
        """The form of the answers, which names the fields in errors."""
        self.reading: ParsedBody | None = None
        """What was submitted, complete; `Service.resume` takes it."""
        self._progress: list[StreamProgress] = []
        self._is_stopped = False
        self.on_close: Callable[[], None] = lambda: None
        """Called when it is closed, maybe more than once."""
        self.default_end = math.inf
        """When the server's own limit on its time passes, by `time.monotonic`."""
        self.unread = 0
        """Bytes of collected deltas that are not sent yet; `UnreadOutput` counts them."""

    @classmethod
    async def submit(
        cls,
        engine: Engine,
        requests: Iterable[Request],
        begin: Callable[[], RequestMeters],
        backlog: UnreadOutput | None = None,
    ) -> ResponseFlow:
        """Submit all requests, with metrics from ``begin`` for each, or none if one is refused.

        Other tasks may run in between, since a long request takes milliseconds.
        """
        flow = cls(backlog)
        try:
            for request in requests:
                flow._meters.append(begin())
                flow._streams.append(engine.submit(request))
                flow._progress.append(StreamProgress(len(request.prompt), set(range(request.n))))
                flow._stop_ids = request.stop_ids
                await asyncio.sleep(0)
        except BaseException:
            flow.close()
            raise
        return flow

    async def read(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield deltas as they arrive, each with the number of its request.

        Raises:
            ParallaxError: if a request fails; the others end then, too.
        """
        if len(self._streams) == 1:  # nothing to merge: one asynchronous generator less for every token
            async for delta in self._streams[0]:
                yield 0, self._take(0, delta)
        else:
            try:
                async with aclosing(merge(self._streams)) as merged:
                    async for number, delta in merged:
                        yield number, self._take(number, delta)
            except StreamClosed:
                if not self._is_stopped:
                    raise
        for number, delta in self._end_stopped():
            yield number, delta

    async def collect(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield deltas as `read` does, for a caller that keeps them until the end; they count as unread until sent.

        Raises:
            InvalidRequest: if the answer becomes too large.
            ParallaxError: if a request fails; the others end then, too.
        """
        try:
            async for number, delta in self.read():
                self._backlog.add(self, weigh(delta))
                yield number, delta
        except StreamClosed:
            if not self._excess:
                raise
        if self._excess:
            message = f"the answer is too large to be sent whole: {self._excess}"
            raise InvalidRequest(message, "stream", "ask for less, or send 'stream': true")

    def stop(self) -> None:
        """Stop generating; the answers end where they are, as at a stop string."""
        self._is_stopped = True
        for stream in self._streams:
            stream.close()

    def _end_stopped(self) -> Iterator[tuple[int, Delta]]:
        """Yield the ends of the answers that were stopped, and count their usage."""
        for number, progress in enumerate(self._progress if self._is_stopped else ()):
            if progress.open:
                yield from ((number, Delta(index=index, ended="stop")) for index in sorted(progress.open))
                self._finishes.append(progress.finish())

    def cut(self, reason: str) -> None:
        """Stop generating, because the collected deltas are too large."""
        self._excess = reason
        self.close()

    def count_tokens(self) -> TokenCounts:
        """Return the token counts; call it when all requests have ended."""
        return TokenCounts(
            prompt=sum(finish.prompt_tokens for finish in self._finishes),
            cached=sum(finish.cached_tokens // CACHE_BLOCK * CACHE_BLOCK for finish in self._finishes),
            output=sum(finish.output_tokens for finish in self._finishes),
            pinned=sum(finish.pinned_tokens for finish in self._finishes),
        )

    def _take(self, number: int, delta: Delta) -> Delta:
        self._meters[number].note(delta)
        self._progress[number].note(delta)
        if delta.finish is not None:
            hint = DEFAULT_TIMEOUT if time.monotonic() >= self.default_end else ""
            _check(delta.finish, self.form, hint)
            self._finishes.append(delta.finish)
        return self._hide_stop(delta)

    def _hide_stop(self, delta: Delta) -> Delta:
        """Return the delta without the log-probability of a stop token, which has no text."""
        if not (delta.ended and delta.logprobs and delta.logprobs[-1].token in self._stop_ids):
            return delta
        return replace(delta, logprobs=delta.logprobs[:-1])

    def count_error(self, status: int) -> None:
        """Count an error with this status that ends the stream."""
        self._meters[0].meters.count_error(status)

    def close(self) -> None:
        """Stop generating, and count nothing as unread any more. Idempotent."""
        self.on_close()
        self._backlog.take(self, self.unread)
        pairs = zip(self._streams, self._meters, strict=False)  # a request that was refused has no stream
        for stream, request_meters in pairs:
            stream.close()
            request_meters.abandon()


class Closable(Protocol):
    """The source of a response; `ResponseFlow` is one."""

    def close(self) -> None:
        """Release what it holds. Idempotent."""


class SseResponse(StreamingResponse):
    """Sends the events of a stream, and stops generating when the response ends for any reason.

    The iterator of events cannot do so itself: the client may be gone before it starts.

    Args:
        events: the events, written completely.
        flow: what they are made from; None: it does not end with the response.
        sign: what is sent during long pauses.
    """

    silence_s = SILENCE_S

    def __init__(self, events: AsyncIterator[bytes], flow: Closable | None = None, sign: bytes = COMMENT) -> None:
        super().__init__(events, headers=AS_IT_COMES, media_type="text/event-stream")
        self._flow = flow
        self._sign = sign

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._flow is not None:
                self._flow.close()

    async def stream_response(self, send: Send) -> None:
        """Send the head and the events, and the sign during long pauses."""
        async with KeepAlive(send, self.silence_s, self._sign) as alive:
            await super().stream_response(alive.send)


class WholeResponse(Response):
    """Sends a collected answer, which counts as unread until it is sent."""

    def __init__(self, answer: Response, flow: Closable) -> None:
        super().__init__()
        self._answer = answer
        self._flow = flow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await self._answer(scope, receive, send)
        finally:
            self._flow.close()


async def answer_whole(http: fastapi.Request, collecting: Awaitable[Response], flow: Closable) -> Response:
    """Return the response that sends the collected answer of a flow; raises what `while_connected` raises."""
    try:
        return WholeResponse(await while_connected(http, collecting), flow)
    except BaseException:
        flow.close()
        raise


async def while_connected(http: fastapi.Request, work: Awaitable[T]) -> T:
    """Await ``work``, and cancel it if the client disconnects first.

    Raises:
        ClientGone: if the client disconnected.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()


async def _disconnect(http: fastapi.Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _check(finish: Finish, form: ResponseForm | None, late_hint: str) -> None:
    """Raise the error of an answer that failed; ``late_hint`` says why its time is limited."""
    match finish.reason:
        case "error" if finish.param:
            raise name_api_field(InvalidRequest(finish.message, finish.param), form)
        case "error":
            raise BackendFailed(finish.message)
        case "timeout":
            raise RequestTimeout(finish.message, late_hint)
        case "aborted":
            raise Unavailable(finish.message)
