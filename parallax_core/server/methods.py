"""Answers HEAD and OPTIONS wherever other methods are served (RFC 9110, section 9.3)."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""The methods that routes have; HEAD comes with GET, and OPTIONS with any."""


def has_path(scope: Scope, path: str) -> bool:
    """Return whether the application has a route at a path, for whatever method."""
    return any(route.matches(_ask(scope, path, "GET"))[0] is not Match.NONE for route in scope["app"].routes)


def list_methods(scope: Scope, path: str) -> list[str]:
    """Return the methods that the application serves at a path."""
    found = [each for each in (*METHODS, "HEAD") if has_route(scope, path, each)]
    if "GET" in found and "HEAD" not in found:
        found.append("HEAD")
    return [*found, "OPTIONS"] if found else []


def has_route(scope: Scope, path: str, method: str) -> bool:
    """Return whether the application has a route for a method at a path."""
    return any(route.matches(_ask(scope, path, method))[0] is Match.FULL for route in scope["app"].routes)


def _ask(scope: Scope, path: str, method: str) -> Scope:
    return {"type": "http", "path": path, "method": method, "headers": scope["headers"]}


def answer_options(allowed: list[str]) -> Response:
    """Return the response to OPTIONS."""
    return Response(status_code=204, headers={"Allow": ", ".join(allowed)})


class HeadRequests:
    """Middleware that answers HEAD like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or has_route(scope, scope["path"], "HEAD"):
            await self._app(scope, receive, send)
            return
        is_over = False

        async def send_head(message: Message) -> None:
            nonlocal is_over
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})
                is_over = True

        async def receive_until_over() -> Message:
            return {"type": "http.disconnect"} if is_over else await receive()  # or a stream would go on

        await self._app({**scope, "method": "GET"}, receive_until_over, send_head)
