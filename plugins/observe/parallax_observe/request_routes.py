"""Lists running and recent requests, each with the times of its parts."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parallax_core.api import needs_role
from parallax_core.api.dialect import ResponseModel, describe_answer, describe_errors, respond_with
from parallax_observe.request_record import MOST_ENDED, RecordedRequest, RequestRecord
from parallax_observe.tracing import split_time

MOST_MESSAGE = 300
"""The most characters of an error that are shown."""
PHASES = frozenset({"queue", "prefill", "decode", "recovery"})
"""The parts of a request that lie one after the other, or within another; all others are sums over steps."""

Limit = Annotated[int, Query(ge=1, le=MOST_ENDED, description="The most requests; the latest are listed.")]
Model = Annotated[str | None, Query(max_length=1024, description="Only requests for the model with this id.")]


class PartReply(ResponseModel):
    """A part of a request's time."""

    name: str
    """``queue``, ``prefill``, ``decode``, ``recovery``, ``stage N``, ``hop N``, ``sampling`` or ``detokenize``."""
    start_seconds: float
    """From the request's arrival at its engine; of a sum over steps, the end of the queue."""
    seconds: float
    is_sum: bool
    """Whether it is a sum over steps, which may overlap."""


class RequestReply(ResponseModel):
    """A request."""

    id: str
    """That of the answer, such as ``chatcmpl-…``, with the number of the prompt if there are several."""
    model: str
    state: Literal["running", "ended"]
    began: float
    """The time of its arrival at the engine, in seconds since 1970."""
    seconds: float
    """From then to its end, or until now."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """0 while it runs."""
    first_token_seconds: float | None
    """Null: it runs, or no token was drawn."""
    reason: str | None
    """Why it ended, such as ``stop``, ``length``, ``aborted``, ``timeout`` or ``error``; null: it runs."""
    message: str | None
    """The error, if it ended with one."""
    parts: list[PartReply]
    """Empty while it runs, and for an engine that measures nothing."""


class RequestsReply(ResponseModel):
    """The answer to ``GET /v1/requests``."""

    object: Literal["list"]
    now: float
    """The time of the server, in seconds since 1970."""
    data: list[RequestReply]
    """First running, then ended ones, the latest of each first."""


def make_request_router(record: RequestRecord) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get("/v1/requests", responses=describe_answer(RequestsReply) | describe_errors(400, 401, 403))
    @needs_role("admin")
    async def list_requests(limit: Limit = 100, model: Model = None) -> Response:
        """List running and recent requests, with the times of their parts, and without prompts or answers."""
        now = time.time()
        data = [show_request(each, now) for each in record.list(limit, model)]
        return respond_with(RequestsReply(object="list", now=now, data=data))

    return router


def show_request(request: RecordedRequest, now: float) -> RequestReply:
    """Return what is shown of a request; ``now``: in seconds since 1970."""
    ended = request.ended
    finish = ended and ended.finish
    return RequestReply(
        id=request.id,
        model=request.model,
        state="ended" if ended else "running",
        began=request.began,
        seconds=ended.duration_s if ended else max(0.0, now - request.began),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=finish.cached_tokens if finish else 0,
        output_tokens=finish.output_tokens if finish else 0,
        first_token_seconds=ended.first_token_s if ended else None,
        reason=finish.reason if finish else None,
        message=(finish.message[:MOST_MESSAGE] or None) if finish else None,
        parts=[
            PartReply(part.name, part.start_s, part.took_s, part.name not in PHASES)
            for part in (split_time(ended.duration_s, ended.finish) if ended else ())
            if part.name != "read"
        ],
    )
