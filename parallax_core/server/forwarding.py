"""Lets plugins call the server's own routes, after authentication and the other middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import fastapi
import msgspec
from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope

from parallax_core.server.error_forms import ErrorForms
from parallax_core.server.route_roles import RouteRoles

T = TypeVar("T")

SMALL = 2**16
"""Bytes of a body that are decoded in less time than another thread takes to begin."""
LEFT_OUT = {b"content-type", b"content-length", b"transfer-encoding", b"content-encoding"}
"""The headers about the client's body, which the route gets another one for."""
OWN = {"path_params", "route", "router", "endpoint"}
"""What the application has found out about the client's request."""


class RouteAnswer:
    """The response of a route, which runs in a task and waits for its reader; see `ForwardedAnswer`."""

    def __init__(self) -> None:
        self.status = 0
        self._messages: asyncio.Queue[Message | BaseException | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None

    async def begin(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        """Run the route until its response begins; raises what it raises until then."""
        self._task = asyncio.create_task(self._run(app, scope, receive))
        try:
            first = await self._next()
        except BaseException:
            await self.close()
            raise
        assert first is not None, "the route has answered nothing"
        self.status = int(first["status"])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body."""
        while (message := await self._next()) is not None:
            if piece := message.get("body", b""):
                yield piece

    async def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([piece async for piece in self])

    async def read_json(self, kind: type[T]) -> T:
        """Return the rest of the body, decoded; see `ForwardedAnswer.read_json`."""
        body = await self.read()
        if len(body) <= SMALL:
            return msgspec.json.decode(body, type=kind)
        return await asyncio.to_thread(msgspec.json.decode, body, type=kind)

    async def close(self) -> None:
        """End the route."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        end: BaseException | None = None
        try:
            await app(scope, receive, self._messages.put)
        except Exception as error:  # noqa: BLE001 -- it is raised where the answer is read
            end = error
        await self._messages.put(end)

    async def _next(self) -> Message | None:
        message = await self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message


async def forward(app: FastAPI, request: fastapi.Request, path: str, body: bytes | None) -> RouteAnswer:
    """Return the answer of a route of ``app``; see `HttpSurface.forward`."""
    roles: RouteRoles = app.state.roles
    needed = roles.find(path, "GET" if body is None else "POST")
    checked = roles.find(request.scope["path"], request.scope["method"])
    if needed is None or checked not in {needed, "admin"}:
        message = (
            f"{path} needs the role {needed!r}, and {request.scope['path']} {checked!r}: it cannot be forwarded to"
        )
        raise ValueError(message)
    answer = RouteAnswer()
    routes: Any = ExceptionMiddleware(app.router, handlers=app.exception_handlers)
    forms: ErrorForms = app.state.error_forms
    scope = _make_scope(request.scope, path, body)
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name.decode() not in forms.headers]
    await answer.begin(routes, scope, _make_receive(request, body or b""))
    return answer


def _make_scope(scope: Scope, path: str, body: bytes | None) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name not in LEFT_OUT]
    if body is not None:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    kept = {name: value for name, value in scope.items() if name not in OWN}
    place = {"path": path, "raw_path": path.encode(), "query_string": b""}
    return {**kept, **place, "headers": headers, "method": "GET" if body is None else "POST"}


def _make_receive(request: fastapi.Request, body: bytes) -> Receive:
    """Return the ASGI receive function of a route: the body, then the client's disconnect."""
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            return await request.receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
