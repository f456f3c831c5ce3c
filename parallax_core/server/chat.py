"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import fastapi
import msgspec
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from parallax_core.base.errors import BackendFailed, Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Engine, Finish, Request, Stream
from parallax_core.contracts.sample import Sampling
from parallax_core.node.text import ModelText
from parallax_core.server.errors import UnknownModel, error_body
from parallax_core.server.schema import ChatRequest
from parallax_core.server.sse import DONE, event

T = TypeVar("T")

BROKEN = {"error": 500, "aborted": 503}
"""Finishes that are no answer, and the HTTP status each would have if the answer had not begun."""


@dataclass(frozen=True, slots=True)
class Served:
    """The model behind the API."""

    model_id: str
    engine: Engine
    text: ModelText


@dataclass(frozen=True, slots=True)
class Answer:
    """What all chunks of one answer have in common."""

    id: str
    created: int
    model: str

    def chunk(self, delta: dict[str, str], finish: Finish | None = None) -> dict[str, Any]:
        """Return one ``chat.completion.chunk``."""
        reason = finish.reason if finish else None
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._common("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, finish: Finish) -> dict[str, Any]:
        """Return the chunk that ``stream_options.include_usage`` asks for: no choices, all tokens."""
        return {**self._common("chat.completion.chunk"), "choices": [], "usage": usage(finish)}

    def completion(self, text: str, finish: Finish) -> dict[str, Any]:
        """Return the whole answer of a request that does not stream."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish.reason}
        return {**self._common("chat.completion"), "choices": [choice], "usage": usage(finish)}

    def _common(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(finish: Finish) -> dict[str, int]:
    """Return the token counts in OpenAI's shape."""
    return {
        "prompt_tokens": finish.prompt_tokens,
        "completion_tokens": finish.output_tokens,
        "total_tokens": finish.prompt_tokens + finish.output_tokens,
    }


class EventStream(StreamingResponse):
    """Sends events, and stops generating when it is over in whatever way.

    The events cannot see to that themselves: a client may be gone before the first of them is asked for.
    """

    def __init__(self, events: AsyncIterator[bytes], stream: Stream) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


def make_router(served: Served) -> fastapi.APIRouter:
    """Return the route for ``served``."""
    router = fastapi.APIRouter()

    @router.post("/v1/chat/completions")
    async def create_chat_completion(body: ChatRequest, http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        if body.model != served.model_id:
            message = f"the model '{body.model}' does not exist"
            raise UnknownModel(message, f"this server has '{served.model_id}'")
        answer = Answer(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), served.model_id)
        # Tokenizing a long conversation takes a while: others are answered meanwhile.
        stream = served.engine.submit(await asyncio.to_thread(_to_request, served.text, body, answer.id))
        if not body.stream:
            return await _until_gone(http, _collect(stream, answer), stream)
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(stream, answer, include_usage=include_usage), stream)

    return router


def _to_request(text: ModelText, body: ChatRequest, request_id: str) -> Request:
    return Request(
        id=RequestId(request_id),
        prompt=text.encode_chat([message.as_turn() for message in body.messages]),
        max_tokens=body.max_tokens or body.max_completion_tokens,
        sampling=_to_sampling(text.sampling, body),
        stop_ids=text.stop_ids,
        stop=body.stops,
    )


def _to_sampling(default: Sampling, body: ChatRequest) -> Sampling:
    seed = secrets.randbits(64) if body.seed is None else body.seed % 2**64
    chosen = {name: value for name in ("temperature", "top_p", "top_k") if (value := getattr(body, name)) is not None}
    return msgspec.structs.replace(default, seed=seed, **chosen)


async def _collect(stream: Stream, answer: Answer) -> JSONResponse:
    parts = []
    async for delta in stream:
        parts.append(delta.text)
        if delta.finish is not None:
            if delta.finish.reason == "aborted":
                raise Unavailable(delta.finish.message)
            if delta.finish.reason == "error":
                raise BackendFailed(delta.finish.message)
            return JSONResponse(answer.completion("".join(parts), delta.finish))
    raise AssertionError("a stream ended without a finish")


async def _until_gone(http: fastapi.Request, work: Awaitable[T], stream: Stream) -> T | Response:
    """Await ``work``, and stop generating when the client goes away before it is done."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=499)
    finally:
        stream.close()
        for pending in (task, gone):
            pending.cancel()


async def _disconnect(http: fastapi.Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _events(stream: Stream, answer: Answer, *, include_usage: bool) -> AsyncIterator[bytes]:
    yield event(answer.chunk({"role": "assistant", "content": ""}))
    async for delta in stream:
        if delta.text:
            yield event(answer.chunk({"content": delta.text}))
        if delta.finish is None:
            continue
        if delta.finish.reason in BROKEN:
            yield event(error_body(BROKEN[delta.finish.reason], delta.finish.message))
            return
        yield event(answer.chunk({}, delta.finish))
        if include_usage:
            yield event(answer.usage_chunk(delta.finish))
        yield DONE
