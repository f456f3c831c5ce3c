"""Answers questions."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request, Response

from parallax_core.api import Content, Dialect, needs_role
from parallax_core.api.bodies import JsonObject, cut, to_json
from parallax_core.api.dialect import (
    AnswerParsing,
    ResponseFlow,
    ServedModels,
    ServerOptions,
    answer_whole,
    describe_body,
    respond,
)
from parallax_dialect_ask.bodies import Question


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    router = APIRouter()

    @router.post("/v1/ask", openapi_extra=describe_body(Question))
    @needs_role("user")
    async def ask(http: Request) -> Response:
        """Answer a question with a text."""
        service = await models.find(http)
        reading = await service.read("question", http)
        flow = await service.submit(reading, f"ask-{secrets.token_hex(12)}", http)
        return await answer_whole(http, collect(flow, AnswerParsing(service.parser, reading.form)), flow)

    return Dialect(routers=(router,))


async def collect(flow: ResponseFlow, parsing: AnswerParsing) -> Response:
    """Return the whole answer, without the reasoning of the model."""
    texts: list[str] = []
    async for _, delta in flow.collect():
        texts += [piece.text for piece in parsing.read(delta) if isinstance(piece, Content)]
    whole: JsonObject = {"answer": "".join(texts)}
    return respond(cut(to_json(whole)))
