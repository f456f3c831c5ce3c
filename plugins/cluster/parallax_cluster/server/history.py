"""The route that lists what has happened to a cluster."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parallax_cluster.config.home import event_file
from parallax_cluster.node.membership.event_store import MOST_EVENTS, Event, EventStore
from parallax_core.api import needs_role
from parallax_core.api.dialect import ResponseModel, describe_answer, describe_errors, respond_with

Since = Annotated[float, Query(ge=0, le=10**9, description="Seconds to look back.")]
Limit = Annotated[int, Query(ge=1, le=MOST_EVENTS, description="The most events; the latest are listed.")]


class HistoryReply(ResponseModel):
    """The answer to ``GET /v1/cluster/history``."""

    object: Literal["list"]
    data: list[Event]
    """The oldest first."""


def make_history_router() -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get("/v1/cluster/history", responses=describe_answer(HistoryReply) | describe_errors(400, 401, 403))
    @needs_role("admin")
    async def list_history(since: Since = 86400.0, limit: Limit = 1000) -> Response:
        """List what has happened to the cluster of this machine, also before a restart, the oldest first."""
        store = EventStore(event_file())
        found = await asyncio.to_thread(store.find, time.time() - since, limit)
        return respond_with(HistoryReply(object="list", data=found))

    return router
