"""The route ``POST /v1/embeddings``."""

from __future__ import annotations

import secrets

import fastapi
from fastapi.responses import Response

from parallax_api_embeddings.body_models import EmbeddingReply, EmbeddingRequest
from parallax_api_embeddings.response import EmbeddingResponse
from parallax_core.api import Dialect, needs_role
from parallax_core.api.dialect import (
    ServedModels,
    ServerOptions,
    answer_whole,
    describe_answer,
    describe_body,
    describe_errors,
    respond,
)


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the route for ``models``."""
    router = fastapi.APIRouter()

    @router.post(
        "/v1/embeddings",
        responses=describe_answer(EmbeddingReply) | describe_errors(400, 401, 403, 404, 408, 413, 429, 500, 503),
        openapi_extra=describe_body(EmbeddingRequest),
    )
    @needs_role("user")
    async def create_embeddings(http: fastapi.Request) -> Response:
        """Return the embeddings of one text or several."""
        service = await models.find(http)
        reading = await service.read("embedding", http)
        name = f"embd-{secrets.token_hex(12)}"
        response = EmbeddingResponse(reading, lambda part: service.submit(part, name, http))

        async def answer() -> Response:
            return respond(await response.collect())

        return await answer_whole(http, answer(), response)

    return router
