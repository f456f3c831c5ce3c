"""The routes that list the models."""

from __future__ import annotations

import time
from typing import Literal

import fastapi
from fastapi.responses import Response

from parallax_api_openai.model_weights import describe, find_weights
from parallax_core.api import Dialect, needs_role
from parallax_core.api.dialect import (
    ModelReply,
    ResponseModel,
    ServedModels,
    ServerOptions,
    describe_answer,
    describe_errors,
    respond_with,
)


class ModelsReply(ResponseModel, kw_only=True):
    """The models that the server knows, those that answer first."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the routes."""
    router, created = fastapi.APIRouter(), int(time.time())

    @router.get("/v1/models", responses=describe_answer(ModelsReply) | describe_errors(401, 403))
    @needs_role("user")
    async def show_all() -> Response:
        """List the models that are known, those that answer first."""
        found = find_weights(models)
        named = [(known, name) for known in models.all for name in models.list_names(known)]
        data = [describe(known, created, name, weights=found[known.id]) for known, name in named]
        return respond_with(ModelsReply(data=[*data, *models.describe_adapters(created)]))

    @router.get("/v1/models/{model_id:path}", responses=describe_answer(ModelReply) | describe_errors(401, 403, 404))
    @needs_role("user")
    async def retrieve_model(model_id: str) -> Response:
        """Describe a model that this server knows."""
        known, adapter = models.get(model_id), models.adapters.get(model_id)
        return respond_with(describe(known, created, model_id, adapter, weights=find_weights(models)[known.id]))

    return router
