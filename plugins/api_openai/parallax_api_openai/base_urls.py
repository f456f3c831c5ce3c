"""Serves the routes at the paths that clients with another base URL ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.api.dialect import has_path

API = "/v1"
"""The path prefix of most routes, at the end of OpenAI clients' base URLs."""
MOST_KNOWN, LONGEST_KNOWN = 256, 128
"""The number of paths whose routes are remembered, and the largest number of characters of such a path."""


class BaseUrls:
    """Middleware that corrects the path of a request whose client has another base URL, if one route can be meant.

    It corrects slashes that are too many, and ``/v1`` that is missing or there twice.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and (path := self._find(scope)) != scope["path"]:
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)

    def _find(self, scope: Scope) -> str:
        path: str = scope["path"]
        if (known := self._known.get(path)) is not None:
            return known
        found = next((each for each in list_corrections(path) if has_path(scope, each)), path)
        if len(path) <= LONGEST_KNOWN:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[path] = found
        return found


def list_corrections(path: str) -> Iterator[str]:
    """Yield the paths that may be meant by a path, beginning with itself without needless slashes."""
    clean = re.sub(r"(?<!:)/{2,}", "/", path)  # a model's id may have "://"
    clean = clean.rstrip("/") or "/"
    yield clean
    bare = re.sub(rf"^(?:{API}(?=/|$))+", "", clean)
    yield API + bare
    yield bare or "/"
