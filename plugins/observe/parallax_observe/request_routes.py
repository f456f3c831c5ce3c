"""Lists running and recent requests, each with the times of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parallax_core.api import needs_role
from parallax_core.api.dialect import (
    SseResponse,
    describe_answer,
    describe_errors,
    describe_event_stream,
    respond_with,
)
from parallax_observe.request_feed import Progress, RequestsReply, follow, show_request
from parallax_observe.request_record import MOST_ENDED, RequestRecord

Limit = Annotated[int, Query(ge=1, le=MOST_ENDED, description="The most requests; the latest are listed.")]
Model = Annotated[str | None, Query(max_length=1024, description="Only requests for the model with this id.")]
EVENTS = "Server-sent events `requests`: first the whole list, and then what of it is new or has changed."


def make_request_router(record: RequestRecord, find_running: Callable[[], Progress]) -> APIRouter:
    """Return the routes; ``find_running`` tells how far requests are."""
    router = APIRouter()

    def show(limit: int, model: str | None) -> RequestsReply:
        now, running = time.time(), find_running()
        data = [show_request(each, now, running) for each in record.list(limit, model)]
        return RequestsReply(object="list", now=now, data=data)

    @router.get("/v1/requests", responses=describe_answer(RequestsReply) | describe_errors(400, 401, 403))
    @needs_role("admin")
    async def list_requests(limit: Limit = 100, model: Model = None) -> Response:
        """List running and recent requests, with the times of their parts, and without prompts or answers."""
        return respond_with(show(limit, model))

    @router.get(
        "/v1/requests/events",
        response_class=Response,
        responses={**describe_event_stream(EVENTS, RequestsReply), **describe_errors(400, 401, 403)},
    )
    @needs_role("admin")
    async def follow_requests(limit: Limit = 100, model: Model = None) -> Response:
        """Follow the requests that `GET /v1/requests` lists, as server-sent events."""
        return SseResponse(follow(lambda: show(limit, model)))

    return router
