"""The route ``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import fastapi
import msgspec
from fastapi.responses import Response

from parallax_core.contracts.engine import Delta, Reason
from parallax_core.server.body_messages import ResponseForm
from parallax_core.server.json_pieces import JsonObject, respond, to_json, write_lists, write_object
from parallax_core.server.logprobs import TokenWriter, write_chat_logprobs
from parallax_core.server.openapi import describe_body, describe_errors, describe_events
from parallax_core.server.request_models import ChatRequest
from parallax_core.server.response import ResponseFlow, SseResponse, answer_whole
from parallax_core.server.response_models import ChatChunk, ChatReply
from parallax_core.server.service import Service


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """The answers to one chat request, whole or as a stream of chunks."""

    writer: TokenWriter
    form: ResponseForm
    flow: ResponseFlow
    id: str
    created: int

    async def collect(self) -> Response:
        """Return the whole answer."""
        answers = [ChatAnswer() for _ in range(self.form.num_answers)]
        async for _, delta in self.flow.collect():
            answers[delta.index].add(delta, self._write_logprobs(delta))
        choices = (self._write_choice(index, answer) for index, answer in enumerate(answers))
        whole = {**self._common("chat.completion"), "usage": self.flow.usage()}
        return respond(write_object(whole, "choices", write_lists(choices)))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the answer; the role comes with the first token, so that clients can time that token."""
        to_open = set(range(self.form.num_answers))
        head = to_json(self._common("chat.completion.chunk"))[:-1] + b',"choices":['
        async for _, delta in self.flow.read():
            role = {"role": "assistant"} if delta.index in to_open else {}
            to_open.discard(delta.index)
            logprobs = self._write_logprobs(delta)
            if role or delta.text or logprobs:
                yield head + _write_choice(delta.index, {**role, "content": delta.text}, logprobs) + b"]}"
            if delta.ended:
                yield head + _write_choice(delta.index, {}, reason=delta.ended) + b"]}"
        if self.form.includes_usage:
            yield to_json({**self._common("chat.completion.chunk"), "choices": [], "usage": self.flow.usage()})

    def _write_choice(self, index: int, answer: ChatAnswer) -> Iterator[bytes]:
        message = {"role": "assistant", "content": "".join(answer.texts), "refusal": None}
        choice = {"index": index, "message": message, "finish_reason": answer.reason}
        logprobs = [b"null"] if self.form.logprobs is None else write_chat_logprobs(answer.logprobs)
        return write_object(choice, "logprobs", logprobs)

    def _write_logprobs(self, delta: Delta) -> list[bytes]:
        return [] if self.form.logprobs is None else list(map(self.writer.write_entry, delta.logprobs))

    def _common(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.form.model}


def _write_choice(index: int, delta: JsonObject, logprobs: Sequence[bytes] = (), reason: Reason | None = None) -> bytes:
    """Return the JSON of the choice of a chunk."""
    shown = msgspec.Raw(b"".join(write_chat_logprobs(logprobs))) if logprobs else None
    return to_json({"index": index, "delta": delta, "logprobs": shown, "finish_reason": reason})


@dataclass(slots=True)
class ChatAnswer:
    """One answer while its deltas are collected."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    """The JSON entry of each token."""
    reason: Reason | None = None

    def add(self, delta: Delta, logprobs: list[bytes]) -> None:
        """Append a delta."""
        self.texts.append(delta.text)
        self.logprobs += logprobs
        self.reason = delta.ended or self.reason


def make_router(service: Service) -> fastapi.APIRouter:
    """Return the route for ``service``."""
    router, writer = fastapi.APIRouter(), TokenWriter(service.text.vocabulary)

    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/chat/completions",
        response_model=ChatReply,
        responses={**describe_events(ChatChunk), **errors},
        openapi_extra=describe_body(ChatRequest),
    )
    async def create_chat_completion(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        reading, name = await service.read("chat", http), f"chatcmpl-{secrets.token_hex(12)}"
        flow = await service.submit(reading, name, http)
        chat = ChatResponse(writer, reading.form, flow, name, int(time.time()))
        if reading.form.streams:
            return SseResponse(chat.stream(), flow)
        return await answer_whole(http, chat.collect(), flow)

    return router
