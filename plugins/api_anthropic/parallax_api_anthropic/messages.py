"""The routes ``POST /v1/messages`` and ``/v1/messages/count_tokens``, compatible with Anthropic's."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import get_args

import fastapi
from fastapi.responses import Response

from parallax_api_anthropic import replies
from parallax_api_anthropic.body_models import LONGEST_PIN_S, CountTokensRequest, MessagesRequest
from parallax_api_anthropic.content import ContentPart, open_part, sign
from parallax_api_anthropic.errors import VERSION_HEADER, convert_response
from parallax_api_anthropic.request import KEEPS_BILLING_LINE
from parallax_core.api import Delta, InvalidRequest, ParallaxError, Piece, Reasoning, needs_role
from parallax_core.api.bodies import ParsedBody, ResponseForm, cut, to_json
from parallax_core.api.dialect import (
    AnswerParsing,
    OutputParser,
    ResponseFlow,
    ResponseModel,
    ServedModels,
    Service,
    SseResponse,
    TokenCounts,
    answer_whole,
    continues,
    describe_answer,
    describe_body,
    describe_errors,
    describe_named_events,
    error_response,
    find_request_id,
    read_text,
    respond,
    write_named,
)

VERSIONS = ("2023-06-01", "2026-10-21")
"""The versions of the API that are known here."""
PING = write_named("ping", to_json(replies.Ping()))
"""The event that is sent at the beginning of a stream and during long pauses."""


@dataclass(frozen=True, slots=True)
class MessageResponse:
    """The answer to one request, whole or as a stream of events."""

    request_id: str
    reading: ParsedBody
    flow: ResponseFlow
    answer: MessageAnswer
    id: str

    async def collect(self) -> Response:
        """Return the whole message."""
        async for _, delta in self.flow.collect():
            for piece in self.answer.read(delta):
                self.answer.add(piece)
        message, end = self._begin(self._write_whole_usage()), self._write_end()
        message.content = [part.write() for part in self.answer.parts]
        message.stop_reason, message.stop_sequence = end.stop_reason, end.stop_sequence
        return respond(cut(to_json(message)))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of the message; a broken stream ends with the event ``error``."""
        try:
            async for event in self._stream():
                yield event
        except ParallaxError as error:
            response = error_response(error)
            self.flow.count_error(response.status_code)
            yield write_named("error", to_json(convert_response(response, self.request_id)))

    async def _stream(self) -> AsyncIterator[bytes]:
        begun = replies.MessageUsage(*_count(TokenCounts(sum(self.reading.lengths), 0, 0)), None)
        yield _write_event(replies.MessageStart(self._begin(begun))) + PING
        async for _, delta in self.flow.read():
            for piece in self.answer.read(delta):
                for event in self._write_piece(piece):
                    yield event
        for event in self._close_part():
            yield event
        yield _write_event(
            replies.MessageDelta(self._write_end(), replies.MessageDeltaUsage(*self._count(), self._details))
        )
        yield _write_event(replies.MessageEnded())

    def _write_piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events for a piece, which may end a part and begin another."""
        parts = self.answer.parts
        if not (parts and continues(piece, parts[-1].kind)):
            yield from self._close_part()
        num_parts = len(parts)
        text = self.answer.add(piece)
        if len(parts) > num_parts:
            yield _write_event(replies.ContentStart(len(parts) - 1, parts[-1].opened))
        if text:
            yield _write_event(replies.ContentDelta(len(parts) - 1, parts[-1].write_delta(text)))

    def _close_part(self) -> Iterator[bytes]:
        """Yield the events at the end of the last part."""
        if not self.answer.parts:
            return
        index, part = len(self.answer.parts) - 1, self.answer.parts[-1]
        if part.kind is Reasoning:
            yield _write_event(replies.ContentDelta(index, replies.SignatureDelta(sign("".join(part.texts)))))
        yield _write_event(replies.ContentStop(index))

    def _begin(self, usage: replies.MessageUsage) -> replies.MessageReply:
        return replies.MessageReply(id=self.id, model=self.reading.form.model, content=[], usage=usage)

    def _write_end(self) -> replies.MessageEnd:
        answer = self.answer
        reason: replies.MessageStop = "end_turn"
        if answer.reason == "length":
            reason = "model_context_window_exceeded" if self.reading.form.fills_context else "max_tokens"
        elif answer.stop_string:
            reason = "stop_sequence"
        elif answer.parsing.ends_with_calls:
            reason = "tool_use"
        return replies.MessageEnd(reason, answer.stop_string or None)

    def _count(self) -> tuple[int, int, int, int]:
        counts, is_shown = self.flow.count_tokens(), self.answer.is_shown
        return _count(counts if is_shown else counts._replace(output=0))

    @property
    def _details(self) -> replies.ThinkingDetails:
        return replies.ThinkingDetails(self.answer.parsing.num_reasoning)

    def _write_whole_usage(self) -> replies.MessageUsage:
        """Return the usage with the time for which its pinned tokens are kept."""
        usage, pin = replies.MessageUsage(*self._count(), self._details), self.reading.request.pin
        made = usage.cache_creation_input_tokens
        is_long = pin is not None and pin.ttl_s == LONGEST_PIN_S
        usage.cache_creation = replies.CacheCreation(0, made) if is_long else replies.CacheCreation(made)
        return usage


@dataclass(slots=True)
class MessageAnswer:
    """The answer while its deltas are read."""

    parsing: AnswerParsing
    parts: list[ContentPart] = field(default_factory=list)
    reason: str | None = None
    stop_string: str = ""
    is_shown: bool = True
    """Whether the client wants more than its prompt."""

    @classmethod
    def of(cls, parser: OutputParser | None, form: ResponseForm) -> MessageAnswer:
        """Return an answer that has not begun."""
        return cls(AnswerParsing(parser, form), is_shown=form.is_shown)

    def read(self, delta: Delta) -> list[Piece]:
        """Return the pieces that a delta completes, and note how the answer ended."""
        if not self.is_shown:
            self.reason = "length"
            return []
        self.reason, self.stop_string = delta.ended, delta.stop_string
        return self.parsing.read(delta)

    def add(self, piece: Piece) -> str:
        """Add a piece to the last part or to a new one, and return its text."""
        if not (self.parts and continues(piece, self.parts[-1].kind)):
            self.parts.append(open_part(piece))
        text = read_text(piece)
        self.parts[-1].texts.append(text)
        return text


def _count(counts: TokenCounts) -> tuple[int, int, int, int]:
    """Return the first four counts of `MessageDeltaUsage`."""
    pinned = max(0, counts.pinned - counts.cached)
    return counts.prompt - counts.cached - pinned, pinned, counts.cached, counts.output


def _write_event(event: ResponseModel) -> bytes:
    return write_named(str(event.__struct_config__.tag), to_json(event))


def write_extra(service: Service) -> bytes:
    """Return what the reader of a body has to know; see `keeps_billing_line`."""
    return KEEPS_BILLING_LINE if service.options.keeps_billing_line else b""


def check_version(http: fastapi.Request) -> None:
    """Raise InvalidRequest if the client wants a version of the API that is not known here."""
    version = http.headers.get(VERSION_HEADER)
    if version is not None and version not in VERSIONS:
        message = f"'{VERSION_HEADER}' is {version!r}, and this server knows {' and '.join(VERSIONS)}"
        raise InvalidRequest(message, VERSION_HEADER)


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the routes for ``models``."""
    router = fastapi.APIRouter()
    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 529, model=replies.MessageErrorReply)

    @router.post(
        "/v1/messages",
        responses=describe_answer(
            replies.MessageReply, describe_named_events("message_stop", *get_args(replies.MessageEvent))
        )
        | errors,
        openapi_extra=describe_body(MessagesRequest),
    )
    @needs_role("user")
    async def create_message(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        check_version(http)
        service = await models.find(http)
        reading, name = await service.read("messages", http, write_extra(service)), f"msg_{secrets.token_hex(12)}"
        flow = await service.submit(reading, name, http)
        message = MessageResponse(
            find_request_id(http.scope), reading, flow, MessageAnswer.of(service.parser, reading.form), name
        )
        if reading.form.streams:
            return SseResponse(message.stream(), flow, PING)
        return await answer_whole(http, message.collect(), flow)

    @router.post(
        "/v1/messages/count_tokens",
        responses=describe_answer(replies.TokenCountReply) | errors,
        openapi_extra=describe_body(CountTokensRequest),
    )
    @needs_role("user")
    async def count_tokens(http: fastapi.Request) -> Response:
        """Return the number of tokens of the prompt that a request would have."""
        check_version(http)
        service = await models.find(http)
        return await service.write("count_tokens", http, write_extra(service))

    return router
