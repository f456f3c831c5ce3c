"""The route that lists the latest lines of the log of a server and its nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from parallax_core.api import needs_role
from parallax_core.api.dialect import ResponseModel, describe_answer, describe_errors, respond_with
from parallax_observe.log_store import MOST_OWN, LogLine, LogStore

HEAD = "head"
"""What the query calls the server itself; names of nodes have a slash."""

Limit = Annotated[int, Query(ge=1, le=MOST_OWN, description="The most lines; the latest are listed.")]
After = Annotated[int, Query(ge=0, le=2**53, description="Only lines whose `number` is greater.")]
Node = Annotated[str | None, Query(max_length=256, description="Only lines of this node, or of `head`, the server.")]


class LineReply(ResponseModel):
    """A line of a log."""

    number: int
    """Counts the lines of all logs as they reach the server; it begins anew when the server does."""
    time: float
    """In seconds since 1970, by the clock of the machine that wrote it."""
    level: str
    """``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``."""
    logger: str
    node: str | None
    """Null: the server wrote it."""
    text: str
    """The message, with its traceback; without the bodies of requests, whatever ``log_prompts`` says."""


class LogReply(ResponseModel):
    """The answer to ``GET /v1/log``."""

    object: Literal["list"]
    nodes: list[str]
    """The nodes with lines, also after they have left."""
    last: int
    """The number of the last line there is; less than one that you know: the server has begun anew."""
    data: list[LineReply]
    """In the order in which they came."""


def make_log_router(store: LogStore) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get("/v1/log", responses=describe_answer(LogReply) | describe_errors(400, 401, 403))
    @needs_role("admin")
    async def list_lines(limit: Limit = 200, after: After = 0, node: Node = None) -> Response:
        """List the latest lines of the log of the server and its nodes, from memory, without bodies of requests."""
        found = store.list(limit, after, "" if node == HEAD else node)
        data, nodes = list(map(_show, found)), sorted(store.nodes)
        return respond_with(LogReply(object="list", nodes=nodes, last=store.last, data=data))

    return router


def _show(line: LogLine) -> LineReply:
    return LineReply(line.number, line.time, line.level, line.logger, line.node or None, line.text)
