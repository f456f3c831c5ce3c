"""The routes ``POST /v1/messages`` and ``/v1/messages/count_tokens``, compatible with Anthropic's."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import get_args

import fastapi
from fastapi.responses import Response

from parallax_api_anthropic.body_models import LONGEST_PIN_S, CountTokensRequest, MessagesRequest
from parallax_api_anthropic.content import ContentPart, open_part, sign
from parallax_api_anthropic.errors import VERSION_HEADER, convert_response
from parallax_api_anthropic.replies import MessageErrorReply, MessageEvent, MessageReply, TokenCountReply
from parallax_api_anthropic.request import KEEPS_BILLING_LINE
from parallax_core.api import Delta, InvalidRequest, ParallaxError, Piece, Reasoning, needs_role
from parallax_core.api.bodies import JsonObject, ParsedBody, ResponseForm, cut, to_json
from parallax_core.api.dialect import (
    AnswerParsing,
    OutputParser,
    ResponseFlow,
    ServedModels,
    Service,
    SseResponse,
    TokenCounts,
    answer_whole,
    continues,
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
PING = write_named("ping", to_json({"type": "ping"}))
"""The event that is sent at the beginning of a stream and during long pauses."""
NOT_ENDED: JsonObject = {"stop_reason": None, "stop_sequence": None, "stop_details": None, "container": None}
"""The end fields of a message that has not ended."""
WHOLE_USAGE: JsonObject = {"cache_creation": None, "inference_geo": None, "service_tier": "standard", "speed": None}
"""The fields of the usage of a message that the end of a stream does not have."""


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
        content = [part.write() for part in self.answer.parts]
        return respond(cut(to_json(self._write_message(content, self._write_end(), self._write_whole_usage()))))

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
        begun = _write_usage(TokenCounts(sum(self.reading.lengths), 0, 0), None)
        message = self._write_message([], NOT_ENDED, {**begun, **WHOLE_USAGE})
        yield _write_event("message_start", message=message) + PING
        async for _, delta in self.flow.read():
            for piece in self.answer.read(delta):
                for event in self._write_piece(piece):
                    yield event
        for event in self._close_part():
            yield event
        yield _write_event("message_delta", delta=self._write_end(), usage=self._write_usage())
        yield _write_event("message_stop")

    def _write_piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events for a piece, which may end a part and begin another."""
        parts = self.answer.parts
        if not (parts and continues(piece, parts[-1].kind)):
            yield from self._close_part()
        num_parts = len(parts)
        text = self.answer.add(piece)
        if len(parts) > num_parts:
            yield _write_event("content_block_start", index=len(parts) - 1, content_block=parts[-1].opened)
        if text:
            yield _write_event("content_block_delta", index=len(parts) - 1, delta=parts[-1].write_delta(text))

    def _close_part(self) -> Iterator[bytes]:
        """Yield the events at the end of the last part."""
        if not self.answer.parts:
            return
        index, part = len(self.answer.parts) - 1, self.answer.parts[-1]
        if part.kind is Reasoning:
            signature = {"type": "signature_delta", "signature": sign("".join(part.texts))}
            yield _write_event("content_block_delta", index=index, delta=signature)
        yield _write_event("content_block_stop", index=index)

    def _write_message(self, content: list[JsonObject], end: JsonObject, usage: JsonObject) -> JsonObject:
        message = {"id": self.id, "type": "message", "role": "assistant", "model": self.reading.form.model}
        return {**message, "content": content, **end, "diagnostics": None, "usage": usage}

    def _write_end(self) -> JsonObject:
        answer, reason = self.answer, "end_turn"
        if answer.reason == "length":
            reason = "model_context_window_exceeded" if self.reading.form.fills_context else "max_tokens"
        elif answer.stop_string:
            reason = "stop_sequence"
        elif answer.parsing.ends_with_calls:
            reason = "tool_use"
        return {**NOT_ENDED, "stop_reason": reason, "stop_sequence": answer.stop_string or None}

    def _write_usage(self) -> JsonObject:
        counts, is_shown = self.flow.count_tokens(), self.answer.is_shown
        return _write_usage(counts if is_shown else counts._replace(output=0), self.answer.parsing.num_reasoning)

    def _write_whole_usage(self) -> JsonObject:
        """Return the usage with the time for which its pinned tokens are kept."""
        usage, pin = self._write_usage(), self.reading.request.pin
        name = "ephemeral_1h_input_tokens" if pin and pin.ttl_s == LONGEST_PIN_S else "ephemeral_5m_input_tokens"
        times = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
        made = {**times, name: usage["cache_creation_input_tokens"]}
        return {**usage, **WHOLE_USAGE, "cache_creation": made}


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


def _write_usage(counts: TokenCounts, num_reasoning: int | None) -> JsonObject:
    """Return the token counts; ``num_reasoning``: those of the reasoning, None while they are not known."""
    pinned = max(0, counts.pinned - counts.cached)
    return {
        "input_tokens": counts.prompt - counts.cached - pinned,
        "cache_creation_input_tokens": pinned,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.output,
        "output_tokens_details": None if num_reasoning is None else {"thinking_tokens": num_reasoning},
        "server_tool_use": None,
    }


def _write_event(name: str, **fields: object) -> bytes:
    return write_named(name, to_json({"type": name, **fields}))


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
    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 529, model=MessageErrorReply)

    @router.post(
        "/v1/messages",
        response_model=MessageReply,
        responses={**describe_named_events("message_stop", *get_args(MessageEvent)), **errors},
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
        response_model=TokenCountReply,
        responses=errors,
        openapi_extra=describe_body(CountTokensRequest),
    )
    @needs_role("user")
    async def count_tokens(http: fastapi.Request) -> Response:
        """Return the number of tokens of the prompt that a request would have."""
        check_version(http)
        service = await models.find(http)
        return await service.write("count_tokens", http, write_extra(service))

    return router
