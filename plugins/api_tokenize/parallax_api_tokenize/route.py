"""The routes ``POST /tokenize`` and ``POST /detokenize``, compatible with vLLM's."""

from __future__ import annotations

import fastapi

from parallax_api_tokenize.body_models import DetokenizeRequest, TextReply, TokenizeRequest, TokensReply
from parallax_core.api import Dialect, needs_role
from parallax_core.api.dialect import ServedModels, ServerOptions, describe_answer, describe_body, describe_errors


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the routes for ``models``."""
    router, errors = fastapi.APIRouter(), describe_errors(400, 401, 403, 404, 408, 413, 429, 503)

    @router.post(
        "/tokenize", responses=describe_answer(TokensReply) | errors, openapi_extra=describe_body(TokenizeRequest)
    )
    @needs_role("user")
    async def tokenize(http: fastapi.Request) -> fastapi.Response:
        """Return the tokens of a prompt, or of a conversation as the chat route makes them."""
        service = await models.find(http)
        return await service.write("tokenize", http)

    @router.post(
        "/detokenize", responses=describe_answer(TextReply) | errors, openapi_extra=describe_body(DetokenizeRequest)
    )
    @needs_role("user")
    async def detokenize(http: fastapi.Request) -> fastapi.Response:
        """Return the text of tokens, including special tokens."""
        service = await models.find(http)
        return await service.write("detokenize", http)

    return router
