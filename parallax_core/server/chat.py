"""The route ``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import fastapi
import msgspec
from fastapi.responses import Response

from parallax_core.contracts.dialect import Dialect
from parallax_core.contracts.engine import Delta, Reason
from parallax_core.contracts.surface import needs_role
from parallax_core.server.answer_parsing import AnswerParsing, MessageParts, write_delta
from parallax_core.server.body_messages import ResponseForm
from parallax_core.server.json_pieces import JsonObject, to_json, write_lists, write_object
from parallax_core.server.json_response import respond
from parallax_core.server.logprobs import TokenWriter, write_chat_logprobs
from parallax_core.server.openapi import describe_body, describe_errors, describe_events
from parallax_core.server.options import ServerOptions
from parallax_core.server.request_models import ChatRequest
from parallax_core.server.response import ResponseFlow, SseResponse, answer_whole
from parallax_core.server.response_models import ChatChunk, ChatReply
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service

FinishReason = Reason | Literal["tool_calls"]


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """The answers to one chat request, whole or as a stream of chunks."""

    service: Service
    writer: TokenWriter
    form: ResponseForm
    flow: ResponseFlow
    id: str
    created: int

    async def collect(self) -> Response:
        """Return the whole answer."""
        answers = self._begin()
        async for _, delta in self.flow.collect():
            answers[delta.index].add(delta, self._write_logprobs(delta))
        choices = (self._write_choice(index, answer) for index, answer in enumerate(answers))
        whole = {**self._common("chat.completion"), "usage": self._usage(answers)}
        return respond(write_object(whole, "choices", write_lists(choices)))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the answer; the role comes with the first token, so that clients can time that token."""
        answers = self._begin()
        head = to_json(self._common("chat.completion.chunk"))[:-1] + b',"choices":['
        end = b'],"usage":null}' if self.form.includes_usage else b"]}"
        async for _, delta in self.flow.read():
            for choice in self._write_chunks(delta, answers[delta.index]):
                yield head + choice + end
        if self.form.includes_usage:
            yield to_json({**self._common("chat.completion.chunk"), "choices": [], "usage": self._usage(answers)})

    def _write_chunks(self, delta: Delta, answer: ChatAnswer) -> Iterator[bytes]:
        """Yield the choices of the chunks for a delta; the first has its log-probabilities."""
        deltas = [write_delta(piece) for piece in answer.parsing.read(delta)]
        logprobs = self._write_logprobs(delta)
        if not deltas and (logprobs or not answer.has_role):
            deltas = [{"content": ""}]
        for each in deltas:
            role = {} if answer.has_role else {"role": "assistant"}
            answer.has_role = True
            yield _write_choice(delta.index, {**role, **each}, logprobs)
            logprobs = []
        if delta.ended:
            yield _write_choice(delta.index, {}, reason=answer.read_reason(delta.ended))

    def _begin(self) -> list[ChatAnswer]:
        parser = self.service.parser
        return [ChatAnswer(AnswerParsing(parser, self.form)) for _ in range(self.form.num_answers)]

    def _usage(self, answers: Sequence[ChatAnswer]) -> JsonObject:
        return self.flow.usage(num_reasoning=sum(answer.parsing.num_reasoning for answer in answers))

    def _write_choice(self, index: int, answer: ChatAnswer) -> Iterator[bytes]:
        choice = {"index": index, "message": answer.parts.write(), "finish_reason": answer.reason}
        logprobs = [b"null"] if self.form.logprobs is None else write_chat_logprobs(answer.logprobs)
        return write_object(choice, "logprobs", logprobs)

    def _write_logprobs(self, delta: Delta) -> list[bytes]:
        return [] if self.form.logprobs is None else list(map(self.writer.write_entry, delta.logprobs))

    def _common(self, kind: str) -> JsonObject:
        common = {"id": self.id, "object": kind, "created": self.created, "model": self.form.model}
        return {**common, **self.service.describe_service()}


def _write_choice(
    index: int, delta: JsonObject, logprobs: Sequence[bytes] = (), reason: FinishReason | None = None
) -> bytes:
    """Return the JSON of the choice of a chunk."""
    shown = msgspec.Raw(b"".join(write_chat_logprobs(logprobs))) if logprobs else None
    return to_json({"index": index, "delta": delta, "logprobs": shown, "finish_reason": reason})


@dataclass(slots=True)
class ChatAnswer:
    """One answer while its deltas are read."""

    parsing: AnswerParsing
    parts: MessageParts = field(default_factory=MessageParts)
    """The pieces collected so far; not used for streams."""
    logprobs: list[bytes] = field(default_factory=list)
    """The JSON entry of each token; not used for streams."""
    reason: FinishReason | None = None
    has_role: bool = False
    """Whether a chunk of it has been sent, the first of which has the role."""

    def add(self, delta: Delta, logprobs: list[bytes]) -> None:
        """Append a delta."""
        self.parts.add(self.parsing.read(delta))
        self.logprobs += logprobs
        if delta.ended:
            self.reason = self.read_reason(delta.ended)

    def read_reason(self, reason: Reason) -> FinishReason:
        """Return why the answer ended, in OpenAI's terms."""
        return "tool_calls" if reason == "stop" and self.parsing.ends_with_calls else reason


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),), schemas=(ChatChunk,))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the route for ``models``."""
    router = fastapi.APIRouter()

    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/chat/completions",
        response_model=ChatReply,
        responses={**describe_events(ChatChunk), **errors},
        openapi_extra=describe_body(ChatRequest),
    )
    @needs_role("user")
    async def create_chat_completion(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        service = await models.find(http)
        reading, name = await service.read("chat", http), f"chatcmpl-{secrets.token_hex(12)}"
        flow = await service.submit(reading, name, http)
        chat = ChatResponse(service, service.writer, reading.form, flow, name, int(time.time()))
        if reading.form.streams:
            return SseResponse.of_chunks(chat.stream(), flow)
        return await answer_whole(http, chat.collect(), flow)

    return router
