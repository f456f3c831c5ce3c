"""The route ``POST /v1/responses/compact``: the model summarizes a conversation to shorten it."""

from __future__ import annotations

import secrets

import fastapi
from fastapi.responses import Response

from parallax_api_responses.body_models import CompactRequest
from parallax_api_responses.keeper import ResponseKeeper
from parallax_api_responses.output_parts import OutputMessage
from parallax_api_responses.reasoning_code import encode_text
from parallax_api_responses.replies import CompactedPart, CompactedReply
from parallax_api_responses.route import make_writer, read_kept
from parallax_api_responses.writer import PREFIX, ResponsesWriter
from parallax_core.api import BackendFailed, needs_role
from parallax_core.api.bodies import cut, to_json
from parallax_core.api.dialect import (
    ResponseFlow,
    ServedModels,
    answer_whole,
    describe_answer,
    describe_body,
    describe_errors,
    respond,
)


def make_router(models: ServedModels, keeper: ResponseKeeper) -> fastapi.APIRouter:
    """Return the route for ``models``; ``keeper`` has the responses that a conversation refers to."""
    router = fastapi.APIRouter()
    errors = describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503)

    @router.post(
        "/v1/responses/compact",
        responses=describe_answer(CompactedReply) | errors,
        openapi_extra=describe_body(CompactRequest),
    )
    @needs_role("user")
    async def compact_conversation(http: fastapi.Request) -> Response:
        """Summarize a conversation; the part that is returned stands for it in the next ``input``."""
        service = await models.find(http)
        reading, name = await read_kept("compact", service, keeper, http), f"{PREFIX}{secrets.token_hex(24)}"
        flow = await service.submit(reading, name, http)
        return await answer_whole(http, _collect(flow, make_writer(service, reading, name)), flow)

    return router


async def _collect(flow: ResponseFlow, writer: ResponsesWriter) -> Response:
    await writer.collect(flow)
    summary = "".join(part.text for part in writer.parts if isinstance(part, OutputMessage))
    if not summary.strip():
        message = "the model wrote no summary"
        raise BackendFailed(message, "try again, or send a part of the conversation")
    return respond(cut(to_json(_write(writer, summary))))


def _write(writer: ResponsesWriter, summary: str) -> CompactedReply:
    reply, part = writer.reply, CompactedPart(f"cmp_{writer.id.removeprefix(PREFIX)}", encode_text(summary))
    assert reply.usage is not None
    return CompactedReply(id=reply.id, created_at=reply.created_at, output=[part], usage=reply.usage)
