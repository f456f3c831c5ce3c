"""The route ``POST /v1/responses``, compatible with OpenAI's API."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

import fastapi
from fastapi.responses import Response

from parallax_api_responses.begun import BegunResponse
from parallax_api_responses.body_models import ResponsesRequest
from parallax_api_responses.keeper import ResponseKeeper
from parallax_api_responses.plan import read_plan
from parallax_api_responses.replies import AnyResponseEvent, ResponseEvent, ResponsesReply
from parallax_api_responses.writer import PREFIX, ResponsesWriter
from parallax_core.api import ParallaxError, needs_role
from parallax_core.api.bodies import ParsedBody, cut, to_json
from parallax_core.api.dialect import (
    AnswerParsing,
    ResponseFlow,
    ServedModels,
    Service,
    SseResponse,
    TokenWriter,
    answer_whole,
    describe_answer,
    describe_body,
    describe_errors,
    describe_named_events,
    error_response,
    respond,
    write_named,
)

ANSWERS = describe_answer(
    ResponsesReply,
    describe_named_events("response.completed` or `response.incomplete", *get_args(AnyResponseEvent)),
)
"""The descriptions of a response, and of its stream."""


@dataclass(frozen=True, slots=True)
class ResponseRun:
    """The response to one request, whole or as a stream of events."""

    flow: ResponseFlow
    writer: ResponsesWriter
    save: Callable[[ResponsesWriter], Awaitable[None]]
    """Keeps the response; called before its client knows that it has ended."""

    async def collect(self) -> Response:
        """Return the whole response."""
        await self.writer.collect(self.flow)
        await self.save(self.writer)
        return respond(cut(to_json(self.writer.reply)))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of the response; a broken stream ends with the event ``response.failed``."""
        async for event in self._list_events():
            yield write_named(event.type, to_json(event))

    async def _list_events(self) -> AsyncIterator[ResponseEvent]:
        for event in self.writer.begin():
            yield event
        try:
            async for _, delta in self.flow.read():
                for event in self.writer.read(delta):
                    yield event
            last = list(self.writer.end(self.flow.count_tokens()))
        except ParallaxError as error:
            self.flow.count_error(error_response(error).status_code)
            last = list(self.writer.fail(error))
        await self.save(self.writer)
        for event in last:
            yield event


def make_writer(service: Service, reading: ParsedBody, name: str, created_at: int | None = None) -> ResponsesWriter:
    """Return the writer of the response with the id ``name``, created at a time in seconds since 1970 (None: now)."""
    form, plan = reading.form, read_plan(reading.form.plan)
    tokens = None if form.logprobs is None else TokenWriter(service.text.vocabulary)
    parsing = AnswerParsing(service.parser, form)
    if created_at is None:
        created_at = int(time.time())
    return ResponsesWriter(id=name, plan=plan, parsing=parsing, tokens=tokens, created_at=created_at)


async def read_kept(kind: str, service: Service, keeper: ResponseKeeper, http: fastapi.Request) -> ParsedBody:
    """Read a body of that kind with its earlier responses; raises what `Service.read` raises."""
    return await service.read(kind, http, keeper.describe(), partial(keeper.supply, service.quota.identify(http)))


async def _run_in_background(
    service: Service, keeper: ResponseKeeper, reading: ParsedBody, writer: ResponsesWriter, http: fastapi.Request
) -> Response:
    """Return the response as it is now, or the stream of its events."""
    owner = service.quota.identify(http)
    keeper.check_room(owner)
    flow = await service.submit(reading, writer.id, http)
    try:
        run = await keeper.run(owner, flow, writer, _describe_begun(service, owner, flow, writer))
    except ParallaxError:
        flow.close()
        raise
    return SseResponse(run.follow(0)) if reading.form.streams else respond(cut(to_json(writer.reply)))


def _describe_begun(
    service: Service, owner: bytes, flow: ResponseFlow, writer: ResponsesWriter
) -> BegunResponse | None:
    """Return what the next server needs to go on with a response; None: it cannot."""
    if flow.reading is None or not writer.plan.stores or not service.can_resume(flow.reading):
        return None
    return BegunResponse(
        id=writer.id, owner=owner, model=service.model_id, created_at=writer.created_at, reading=flow.reading
    )


def make_router(models: ServedModels, keeper: ResponseKeeper) -> fastapi.APIRouter:
    """Return the route for ``models``, whose responses ``keeper`` keeps."""
    router = fastapi.APIRouter()
    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/responses",
        responses=ANSWERS | errors,
        openapi_extra=describe_body(ResponsesRequest),
    )
    @needs_role("user")
    async def create_response(http: fastapi.Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        service = await models.find(http)
        reading, name = await read_kept("responses", service, keeper, http), f"{PREFIX}{secrets.token_hex(24)}"
        owner, writer = service.quota.identify(http), make_writer(service, reading, name)
        if writer.plan.in_background:
            return await _run_in_background(service, keeper, reading, writer, http)
        flow = await service.submit(reading, name, http)
        run = ResponseRun(flow, writer, partial(keeper.save, owner))
        if reading.form.streams:
            return SseResponse(run.stream(), flow)
        return await answer_whole(http, run.collect(), flow)

    return router
