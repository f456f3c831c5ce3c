"""The routes that list the models."""

from __future__ import annotations

import time

import fastapi
import msgspec
from fastapi.responses import Response

from parallax_core.server.json_response import respond_with
from parallax_core.server.openapi import describe_answer, describe_errors
from parallax_core.server.response_models import ModelReply, ModelsReply
from parallax_core.server.served_models import ModelEntry, ServedModels


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the routes."""
    router, created = fastapi.APIRouter(), int(time.time())

    @router.get("/v1/models", responses=describe_answer(ModelsReply) | describe_errors(401, 403))
    async def show_all() -> Response:
        """List the models that are known, those that answer first."""
        named = [(known, name) for known in models.all for name in models.list_names(known)]
        return respond_with(ModelsReply(data=[describe_model(known, created, name) for known, name in named]))

    @router.get("/v1/models/{model_id:path}", responses=describe_answer(ModelReply) | describe_errors(401, 403, 404))
    async def retrieve_model(model_id: str) -> Response:
        """Describe a model that this server knows."""
        return respond_with(describe_model(models.get(model_id), created, model_id))

    return router


def describe_model(known: ModelEntry, created: int, name: str = "") -> ModelReply:
    """Return a model in OpenAI's form.

    Args:
        known: the model.
        created: the start of the server, in seconds since 1970.
        name: the name by which the client knows it; empty: its id.
    """
    if known.hosted is None:
        return ModelReply(id=name or known.id, root=known.id, created=created, status=known.status)
    return msgspec.structs.replace(known.hosted.service.describe(known.status), id=name or known.id)
