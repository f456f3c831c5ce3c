"""The route ``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import fastapi
from fastapi.responses import Response

from parallax_api_openai.base_urls import BaseUrls
from parallax_api_openai.chat_replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatReply,
    ChatStopReason,
)
from parallax_api_openai.content_encoding import ContentEncoding
from parallax_api_openai.events import stream_chunks
from parallax_api_openai.fingerprint import make_fingerprint
from parallax_api_openai.message import MessageParts, write_delta
from parallax_api_openai.usage import Usage, read_note, write_usage
from parallax_chat_requests.request_models import ChatRequest
from parallax_core.api import Delta, Dialect, Reason, needs_role
from parallax_core.api.bodies import ResponseForm, to_json
from parallax_core.api.dialect import (
    HOLE,
    AnswerParsing,
    ResponseFlow,
    ServedModels,
    ServerOptions,
    Service,
    TokenWriter,
    answer_whole,
    as_json,
    describe_answer,
    describe_body,
    describe_errors,
    describe_events,
    respond,
    write_list,
    write_lists,
    write_object,
)


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
        answers, last = self._begin(), Delta()
        async for _, delta in self.flow.collect():
            answers[delta.index].add(delta, self._write_logprobs(delta))
            last = delta
        choices = (self._write_choice(index, answer) for index, answer in enumerate(answers))
        whole = ChatReply(
            id=self.id,
            created=self.created,
            model=self.form.model,
            system_fingerprint=make_fingerprint(self.service.model_id),
            usage=self._usage(answers),
            note=read_note(last),
            choices=HOLE,
        )
        return respond(write_object(whole, write_lists(choices)))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the answer; the role comes with the first token, so that clients can time that token."""
        answers = self._begin()
        chunk = ChatChunk(
            id=self.id,
            created=self.created,
            model=self.form.model,
            system_fingerprint=make_fingerprint(self.service.model_id),
            choices=[],
        )
        if self.form.includes_usage:
            chunk.usage = None
        async for _, delta in self.flow.read():
            chunk.note = read_note(delta)
            for choice in self._write_chunks(delta, answers[delta.index]):
                chunk.choices = [choice]
                yield to_json(chunk)
        if self.form.includes_usage:
            chunk.choices, chunk.usage = [], self._usage(answers)
            yield to_json(chunk)

    def _write_chunks(self, delta: Delta, answer: ChatAnswer) -> Iterator[ChatChunkChoice]:
        """Yield the choices of the chunks for a delta; the first has its log-probabilities."""
        deltas = [write_delta(piece) for piece in answer.parsing.read(delta)]
        logprobs = self._write_logprobs(delta)
        if not deltas and (logprobs or not answer.has_role):
            deltas = [ChatDelta(content="")]
        for each in deltas:
            if not answer.has_role:
                each.role = "assistant"
                answer.has_role = True
            shown = as_json(b"".join(write_chat_logprobs(logprobs))) if logprobs else None
            yield ChatChunkChoice(delta.index, each, shown)
            logprobs = []
        if delta.ended:
            yield ChatChunkChoice(delta.index, ChatDelta(), finish_reason=answer.read_reason(delta.ended))

    def _begin(self) -> list[ChatAnswer]:
        parser = self.service.parser
        return [ChatAnswer(AnswerParsing(parser, self.form)) for _ in range(self.form.num_answers)]

    def _usage(self, answers: Sequence[ChatAnswer]) -> Usage:
        return write_usage(self.flow, num_reasoning=sum(answer.parsing.num_reasoning for answer in answers))

    def _write_choice(self, index: int, answer: ChatAnswer) -> Iterator[bytes]:
        logprobs = [b"null"] if self.form.logprobs is None else write_chat_logprobs(answer.logprobs)
        choice = ChatChoice(index, answer.parts.write(), cast("ChatStopReason", answer.reason), HOLE)
        return write_object(choice, logprobs)

    def _write_logprobs(self, delta: Delta) -> list[bytes]:
        return [] if self.form.logprobs is None else list(map(self.writer.write_entry, delta.logprobs))


@dataclass(slots=True)
class ChatAnswer:
    """One answer while its deltas are read."""

    parsing: AnswerParsing
    parts: MessageParts = field(default_factory=MessageParts)
    """The pieces collected so far; not used for streams."""
    logprobs: list[bytes] = field(default_factory=list)
    """The JSON entry of each token; not used for streams."""
    reason: ChatStopReason | None = None
    has_role: bool = False
    """Whether a chunk of it has been sent, the first of which has the role."""

    def add(self, delta: Delta, logprobs: list[bytes]) -> None:
        """Append a delta."""
        self.parts.add(self.parsing.read(delta))
        self.logprobs += logprobs
        if delta.ended:
            self.reason = self.read_reason(delta.ended)

    def read_reason(self, reason: Reason) -> ChatStopReason:
        """Return why the answer ended, in OpenAI's terms."""
        return "tool_calls" if reason == "stop" and self.parsing.ends_with_calls else cast("ChatStopReason", reason)


def write_chat_logprobs(entries: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the ``logprobs`` of a chat's choice."""
    yield b'{"content":'
    yield from write_list(entries)
    yield b',"refusal":null}'


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server, with what clients of OpenAI's API rely on at each path."""
    inflate = partial(ContentEncoding, limit=options.max_body_bytes)
    return Dialect(routers=(make_router(models),), path_middleware=BaseUrls, body_middleware=inflate)


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the route for ``models``."""
    router = fastapi.APIRouter()

    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/chat/completions",
        responses=describe_answer(ChatReply, describe_events(ChatChunk)) | errors,
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
            return stream_chunks(chat.stream(), flow)
        return await answer_whole(http, chat.collect(), flow)

    return router
