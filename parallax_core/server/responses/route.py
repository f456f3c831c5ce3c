"""The route ``POST /v1/responses``, compatible with OpenAI's API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import fastapi
from fastapi.responses import Response

from parallax_core.base.errors import ParallaxError
from parallax_core.server.answer_parsing import AnswerParsing
from parallax_core.server.body_messages import ParsedBody
from parallax_core.server.errors import error_response
from parallax_core.server.json_pieces import JsonObject, cut, respond, to_json
from parallax_core.server.logprobs import TokenWriter
from parallax_core.server.openapi import describe_body, describe_errors, describe_response_events
from parallax_core.server.response import ResponseFlow, SseResponse, answer_whole
from parallax_core.server.responses.body_models import ResponsesRequest
from parallax_core.server.responses.replies import ResponsesReply
from parallax_core.server.responses.writer import PREFIX, ResponsesWriter
from parallax_core.server.service import Service
from parallax_core.server.sse import write_named


@dataclass(frozen=True, slots=True)
class ResponseRun:
    """The response to one request, whole or as a stream of events."""

    flow: ResponseFlow
    writer: ResponsesWriter

    async def collect(self) -> Response:
        """Return the whole response."""
        async for _, delta in self.flow.collect():
            for _event in self.writer.read(delta):
                pass
        for _event in self.writer.end(self.flow.count_tokens()):
            pass
        return respond(cut(to_json(self.writer.write())))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of the response; a broken stream ends with the event ``response.failed``."""
        async for event in self._list_events():
            yield write_named(str(event["type"]), to_json(event))

    async def _list_events(self) -> AsyncIterator[JsonObject]:
        for event in self.writer.begin():
            yield event
        try:
            async for _, delta in self.flow.read():
                for event in self.writer.read(delta):
                    yield event
            for event in self.writer.end(self.flow.count_tokens()):
                yield event
        except ParallaxError as error:
            self.flow.count_error(error_response(error).status_code)
            for event in self.writer.fail(error):
                yield event


def make_writer(service: Service, reading: ParsedBody, name: str) -> ResponsesWriter:
    """Return the writer of the response with the id ``name``."""
    form, plan = reading.form, reading.form.plan
    assert plan is not None
    tokens = None if form.logprobs is None else TokenWriter(service.text.vocabulary)
    return ResponsesWriter(id=name, plan=plan, parsing=AnswerParsing(service.parser, form), tokens=tokens)


def make_router(service: Service) -> fastapi.APIRouter:
    """Return the route for ``service``."""
    router = fastapi.APIRouter()
    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/responses",
        response_model=ResponsesReply,
        responses={**describe_response_events(), **errors},
        openapi_extra=describe_body(ResponsesRequest),
    )
    async def create_response(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        reading, name = await service.read("responses", http), f"{PREFIX}{secrets.token_hex(24)}"
        flow = await service.submit(reading, name, http)
        run = ResponseRun(flow, make_writer(service, reading, name))
        if reading.form.streams:
            return SseResponse(run.stream(), flow)
        return await answer_whole(http, run.collect(), flow)

    return router
