"""The routes of GradientHQ's Parallax, by the server's own: keys, limits and models are its."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from parallax_core.api import HttpSurface, Ref, needs_role
from parallax_server_gradient.cluster import Cluster, Json
from parallax_server_gradient.init import Init, KnownModels

T = TypeVar("T")

CHAT = "/v1/chat/completions"
REWRITE: Ref[Callable[[bytes], bytes]] = Ref("parallax_server_gradient.chat:rewrite_chat")
INIT: Ref[Callable[[bytes], Init]] = Ref("parallax_server_gradient.init:read_init")
"""What reads bodies, in processes of their own."""
CLUSTER, MODELS = "/v1/cluster", "/v1/cluster/models"
TYPES = {
    "/cluster": "cluster_status",
    "/model": "model_list",
    "/node": "node_join_command",
    "/scheduler": "scheduler_init",
}
"""The ``type`` of answers and errors, by the beginning of their path."""
SUCCESSFUL = (200, 202)
NO_CACHE = {"Cache-Control": "no-cache"}
INTERVAL_S = 1.0
"""Seconds between two lines of ``/cluster/status``."""


class Refusal(Exception):
    """The server has refused a request."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.response = Response(body, status, media_type="application/json")


class Gradient:
    """Answers requests with the routes of a server."""

    def __init__(self, server: HttpSurface, interval_s: float) -> None:
        self._server = server
        self._interval_s = interval_s

    async def list_models(self, http: Request) -> Response:
        """Answer ``GET /model/list``."""
        return JSONResponse((await self._look(http)).write_models())

    async def show_join_command(self, http: Request) -> Response:
        """Answer ``GET /node/join/command``."""
        return JSONResponse((await self._look(http)).write_join_command())

    async def show_status(self, http: Request) -> Response:
        """Answer ``GET /cluster/status_json``."""
        return JSONResponse((await self._look(http)).write_status())

    async def follow_status(self, http: Request) -> Response:
        """Answer ``GET /cluster/status``: a line of JSON now, and at each interval."""
        first = await self._look(http)
        return StreamingResponse(self._follow(http, first), media_type="application/x-ndjson", headers=NO_CACHE)

    async def init_scheduler(self, http: Request) -> Response:
        """Answer ``POST /scheduler/init``: begin to serve a model."""
        asked = await self._server.read(http, INIT, Init)
        known = await self._ask(http, MODELS, KnownModels)
        if (change := known.find_change(asked.model_name)) is not None:
            await self._ask(http, MODELS, dict, change)
        echo = {
            "model_name": asked.model_name,
            "init_nodes_num": asked.init_nodes_num,
            "is_local_network": asked.is_local_network,
        }
        return JSONResponse({"type": "scheduler_init", "data": echo})

    async def _follow(self, http: Request, cluster: Cluster) -> AsyncIterator[bytes]:
        while True:
            yield cluster.write_line()
            await asyncio.sleep(self._interval_s)
            try:
                cluster = await self._look(http)
            except Refusal:  # the stream has begun, so all that is left is its end
                return

    async def _look(self, http: Request) -> Cluster:
        return await self._ask(http, CLUSTER, Cluster)

    async def _ask(self, http: Request, path: str, kind: type[T], body: bytes | None = None) -> T:
        """Return the answer of a route, as ``kind``.

        Raises:
            Refusal: if it refuses.
        """
        answer = await self._server.forward(http, path, body)
        try:
            if answer.status not in SUCCESSFUL:
                raise Refusal(answer.status, await answer.read())
            return await answer.read_json(kind)
        finally:
            await answer.close()


def _guard(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a route for administrators that passes on the server's refusals."""

    @needs_role("admin")
    async def guarded(http: Request) -> Response:
        try:
            return await answer(http)
        except Refusal as refusal:
            return refusal.response

    return guarded


def make_router(server: HttpSurface, interval_s: float = INTERVAL_S) -> APIRouter:
    """Return the routes for ``server``."""
    for path, kind in TYPES.items():
        server.write_errors(path, _name_errors(kind))
    api, router = Gradient(server, interval_s), APIRouter()
    routes = {
        "/model/list": api.list_models,
        "/node/join/command": api.show_join_command,
        "/cluster/status": api.follow_status,
        "/cluster/status_json": api.show_status,
    }
    for path, answer in routes.items():
        router.add_api_route(path, _guard(answer), methods=["GET"], name=f"gradient{path.replace('/', '_')}")
    router.add_api_route(
        "/scheduler/init", _guard(api.init_scheduler), methods=["POST"], name="gradient_scheduler_init"
    )
    return router


def _name_errors(kind: str) -> Callable[[int, str], Json]:
    """Return what writes an error of answers of a type."""
    return lambda _, message: {"type": kind, "error": message}
