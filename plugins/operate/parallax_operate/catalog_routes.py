"""Lists the models on the server's machine, removes them, and finds further ones elsewhere."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from parallax_core.api import Machine, ParallaxError, Unavailable, UnknownName, models_folder, needs_role
from parallax_core.api.dialect import ResponseModel, ServedModels, describe_answer, describe_errors, respond_with
from parallax_operate.catalog import FormatReply, FoundModelReply, ServerCatalog, StoredModelReply

T = TypeVar("T")

RETRY_S = 10
"""Seconds after which a place of models that could not be asked may be asked again."""
Text = Annotated[str, Query(min_length=1, max_length=200, description="A part of the names of models.")]
Limit = Annotated[int, Query(ge=1, le=50, description="The most models.")]
Model = Annotated[str, Query(min_length=1, max_length=1024, description="Such as `org/name`.")]
ModelPath = Annotated[str, Path(max_length=1024, description="Its name in `GET /v1/catalog`.")]

logger = logging.getLogger(__name__)


class CatalogReply(ResponseModel):
    """The answer to ``GET /v1/catalog``."""

    object: Literal["catalog"]
    memory_free: int | None
    """Bytes of main memory that are free on the server's machine; null: unknown."""
    disk_free: int | None
    """Bytes that are free on the disk of its models; null: unknown."""
    searched: list[str]
    """The sources that ``GET /v1/catalog/search`` asks."""
    aliases: dict[str, str]
    """What stands for a model, with its full name."""
    data: list[StoredModelReply]


class FoundReply(ResponseModel):
    """The answer to ``GET /v1/catalog/search``."""

    object: Literal["list"]
    data: list[FoundModelReply]


class FormatsReply(ResponseModel):
    """The answer to ``GET /v1/catalog/formats``."""

    object: Literal["list"]
    data: list[FormatReply]
    """The smallest first."""


class RemovedReply(ResponseModel):
    """The answer to ``DELETE /v1/catalog/{model}``."""

    name: str
    freed_bytes: int


def make_catalog_router(models: ServedModels, catalog: ServerCatalog) -> APIRouter:
    """Return the routes; ``models`` are those that are loaded."""
    router = APIRouter()

    @router.get("/v1/catalog", responses=describe_answer(CatalogReply) | describe_errors(401, 403))
    @needs_role("admin")
    async def list_models() -> Response:
        """List the models on the server's machine, and how much room it has."""
        return respond_with(await asyncio.to_thread(_list, catalog))

    @router.get("/v1/catalog/search", responses=describe_answer(FoundReply) | describe_errors(400, 401, 403, 503))
    @needs_role("admin")
    async def search_models(text: Text, limit: Limit = 20) -> Response:
        """Find models by a part of their names where they are published; what is asked for leaves the machine."""
        found = await _ask(lambda: catalog.search(text, limit))
        return respond_with(FoundReply("list", found))

    @router.get(
        "/v1/catalog/formats", responses=describe_answer(FormatsReply) | describe_errors(400, 401, 403, 404, 503)
    )
    @needs_role("admin")
    async def list_formats(model: Model) -> Response:
        """List the formats in which a model is published, with their sizes."""
        found = await _ask(lambda: catalog.list_formats(model))
        return respond_with(FormatsReply("list", found))

    @router.delete(
        "/v1/catalog/{model:path}", responses=describe_answer(RemovedReply) | describe_errors(400, 401, 403, 404, 409)
    )
    @needs_role("admin")
    async def remove_model(model: ModelPath) -> Response:
        """Delete a model from the server's machine. What other machines have of it stays there."""
        freed = await asyncio.to_thread(catalog.remove, model, models.loaded)
        logger.info("model removed name=%s freed_bytes=%d", model, freed)
        return respond_with(RemovedReply(model, freed))

    return router


def _list(catalog: ServerCatalog) -> CatalogReply:
    folder = models_folder()
    place = next(each for each in (folder, *folder.parents) if each.exists())
    return CatalogReply(
        object="catalog",
        memory_free=Machine().free_memory(),
        disk_free=shutil.disk_usage(place).free,
        searched=catalog.list_searched(),
        aliases=catalog.list_aliases(),
        data=catalog.list_stored(),
    )


async def _ask(work: Callable[[], T]) -> T:
    """Return the result of a question to a network, on a thread of its own."""
    try:
        return await asyncio.to_thread(work)
    except (UnknownName, Unavailable):
        raise
    except ParallaxError as error:
        raise Unavailable(error.message, error.hint, RETRY_S) from error
