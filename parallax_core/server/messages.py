"""The routes ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``, compatible with Anthropic's API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import fastapi
import msgspec
from fastapi.responses import Response

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.contracts.engine import Delta
from parallax_core.server.body_messages import ParsedBody
from parallax_core.server.errors import error_response
from parallax_core.server.json_pieces import JsonObject, cut, respond, to_json
from parallax_core.server.message_errors import convert_error
from parallax_core.server.message_models import CountTokensRequest, MessagesRequest
from parallax_core.server.message_replies import MessageReply, TokenCountReply
from parallax_core.server.openapi import describe_body, describe_message_errors, describe_message_events
from parallax_core.server.response import ResponseFlow, SseResponse, answer_whole
from parallax_core.server.service import Service
from parallax_core.server.sse import write_named

VERSION_HEADER, VERSIONS = "anthropic-version", ("2023-06-01", "2026-10-21")
"""The header with the version of the API, and the versions known here."""
PING = write_named("ping", to_json({"type": "ping"}))
"""The event that is sent at the beginning of a stream and during long pauses."""


@dataclass(frozen=True, slots=True)
class MessageResponse:
    """The answer to one request, whole or as a stream of events."""

    http: fastapi.Request
    reading: ParsedBody
    flow: ResponseFlow
    id: str

    async def collect(self) -> Response:
        """Return the whole message."""
        answer = MessageAnswer()
        async for _, delta in self.flow.collect():
            answer.add(delta)
        text = "".join(answer.texts)
        content = [_write_text(text)] if text else []
        return respond(cut(to_json(self._write_message(content, self._write_end(answer), self._write_usage()))))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of the message; a broken stream ends with the event ``error``."""
        try:
            async for event in self._stream():
                yield event
        except ParallaxError as error:
            response = error_response(error)
            self.flow.count_error(response.status_code)
            body = msgspec.json.decode(bytes(response.body))["error"]
            yield write_named("error", to_json(convert_error(response.status_code, body, self.http.scope)[1]))

    async def _stream(self) -> AsyncIterator[bytes]:
        answer = MessageAnswer()
        begun = _write_usage(sum(self.reading.lengths))
        message = self._write_message([], {"stop_reason": None, "stop_sequence": None}, begun)
        yield _write_event("message_start", message=message) + PING
        async for _, delta in self.flow.read():
            if delta.text and not answer.has_text:
                yield _write_event("content_block_start", index=0, content_block=_write_text(""))
            answer.note(delta)
            if delta.text:
                yield _write_event("content_block_delta", index=0, delta={"type": "text_delta", "text": delta.text})
        if answer.has_text:
            yield _write_event("content_block_stop", index=0)
        yield _write_event("message_delta", delta=self._write_end(answer), usage=self._write_usage())
        yield _write_event("message_stop")

    def _write_message(self, content: list[JsonObject], end: JsonObject, usage: JsonObject) -> JsonObject:
        message = {"id": self.id, "type": "message", "role": "assistant", "model": self.reading.form.model}
        return {**message, "content": content, **end, "usage": usage}

    def _write_end(self, answer: MessageAnswer) -> JsonObject:
        reason = "stop_sequence" if answer.stop_string else "end_turn"
        if answer.reason == "length":
            reason = "model_context_window_exceeded" if self.reading.form.fills_context else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": answer.stop_string or None}

    def _write_usage(self) -> JsonObject:
        prompt, cached, output = self.flow.count_tokens()
        return _write_usage(prompt - cached, cached, output)


@dataclass(slots=True)
class MessageAnswer:
    """The answer while its deltas are read."""

    texts: list[str] = field(default_factory=list)
    """Its pieces; only if it is collected."""
    has_text: bool = False
    reason: str | None = None
    stop_string: str = ""

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.texts.append(delta.text)
        self.note(delta)

    def note(self, delta: Delta) -> None:
        """Note how the answer ended, and whether it has text."""
        self.has_text |= bool(delta.text)
        self.reason, self.stop_string = delta.ended, delta.stop_string


def _write_text(text: str) -> JsonObject:
    return {"type": "text", "text": text, "citations": None}


def _write_usage(computed: int, cached: int = 0, output: int = 0) -> JsonObject:
    return {
        "input_tokens": computed,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _write_event(name: str, **fields: object) -> bytes:
    return write_named(name, to_json({"type": name, **fields}))


def check_version(http: fastapi.Request) -> None:
    """Raise InvalidRequest if the client wants a version of the API that is not known here."""
    version = http.headers.get(VERSION_HEADER)
    if version is not None and version not in VERSIONS:
        message = f"'{VERSION_HEADER}' is {version!r}, and this server knows {' and '.join(VERSIONS)}"
        raise InvalidRequest(message, VERSION_HEADER)


def make_router(service: Service) -> fastapi.APIRouter:
    """Return the routes for ``service``."""
    router = fastapi.APIRouter()

    @router.post(
        "/v1/messages",
        response_model=MessageReply,
        responses={**describe_message_events(), **describe_message_errors(400, 401, 403, 404, 408, 413, 429, 500, 529)},
        openapi_extra=describe_body(MessagesRequest),
    )
    async def create_message(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        check_version(http)
        reading, name = await service.read("messages", http), f"msg_{secrets.token_hex(12)}"
        flow = await service.submit(reading, name, http)
        message = MessageResponse(http, reading, flow, name)
        if reading.form.streams:
            return SseResponse(message.stream(), flow, PING)
        return await answer_whole(http, message.collect(), flow)

    @router.post(
        "/v1/messages/count_tokens",
        response_model=TokenCountReply,
        responses=describe_message_errors(400, 401, 403, 404, 408, 413, 429, 500, 529),
        openapi_extra=describe_body(CountTokensRequest),
    )
    async def count_tokens(http: fastapi.Request) -> Response:
        """Return the number of tokens of the prompt that a request would have."""
        check_version(http)
        return await service.write("count_tokens", http)

    return router
