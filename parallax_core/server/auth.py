"""API keys."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.server.caller import digest_key, read_key
from parallax_core.server.errors import error_body

OPEN_PATHS = frozenset({"/health", "/version"})
"""What answers without a key, so that supervisors need none."""


class KeyCheck:
    """Middleware that answers 401 unless a request carries ``Authorization: Bearer KEY`` with a known key.

    Digests of equal length are compared in constant time, and all of them each time, so that the time an answer takes
    tells nothing about any key.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._digests = [digest_key(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        body = error_body(401, "no valid API key: send 'Authorization: Bearer KEY'", code="invalid_api_key")
        await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        key = read_key(scope)
        given = digest_key(key)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches) and key != ""
