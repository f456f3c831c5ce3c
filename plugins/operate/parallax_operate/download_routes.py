"""Fetches models to the server's machine, without loading them."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parallax_core.api import UnknownName, needs_role
from parallax_core.api.dialect import ResponseModel, describe_answer, describe_errors, respond_with
from parallax_operate.downloads import Download, Downloads, State

Model = Annotated[str, Query(min_length=1, max_length=1024, description="Such as `org/name`.")]


class DownloadReply(ResponseModel):
    """A model that is fetched to the server's machine, or was."""

    model: str
    state: State
    task: str | None
    """What is being done; null: nothing yet."""
    done: int
    total: int | None
    """Null: unknown."""
    unit: str
    """The unit of ``done`` and ``total``."""
    error: str | None
    """Why it failed; null: it did not."""
    seconds: float
    """Since it began."""


class DownloadsReply(ResponseModel):
    """The answer to ``GET /v1/catalog/downloads``."""

    object: Literal["list"]
    data: list[DownloadReply]
    """The latest first; at most 16."""


def make_download_router(downloads: Downloads) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/v1/catalog/downloads", responses=describe_answer(DownloadsReply) | describe_errors(401, 403))
    @needs_role("admin")
    async def list_downloads() -> Response:
        """List the models that are being fetched to the server's machine, and those that were of late."""
        return respond_with(DownloadsReply("list", [_show(each) for each in downloads.recent]))

    @router.post(
        "/v1/catalog/downloads",
        status_code=202,
        responses=describe_answer(DownloadReply, status=202) | describe_errors(400, 401, 403, 409),
    )
    @needs_role("admin")
    async def download_model(model: Model) -> Response:
        """Begin to fetch a model to the server's machine, without loading it."""
        return respond_with(_show(downloads.begin(model)), 202)

    @router.delete(
        "/v1/catalog/downloads", responses=describe_answer(DownloadReply) | describe_errors(400, 401, 403, 404)
    )
    @needs_role("admin")
    async def stop_download(model: Model) -> Response:
        """Stop fetching a model. What has come stays, and is not fetched again later."""
        if (found := downloads.stop(model)) is None:
            raise UnknownName(f"{model} is not being fetched")
        return respond_with(_show(found))

    return router


def _show(each: Download) -> DownloadReply:
    seconds = round(time.monotonic() - each.began, 3)
    task, error = each.task or None, each.error or None
    return DownloadReply(each.model, each.state, task, each.done, each.total, each.unit, error, seconds)
