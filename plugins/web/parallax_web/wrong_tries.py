"""Limits how often an address may try to sign in with what is wrong."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions, error_body

MOST_WRONG, WRONG_S = 10, 60.0
"""The wrong tries of an address in `WRONG_S` seconds; it is refused until the oldest is past."""
MOST_CALLERS = 10_000
"""The most addresses with wrong tries that are kept; the oldest goes first."""
SIGN_IN = ("POST", "/session")
REFUSED = 401


class WrongTries:
    """The wrong tries of each address, in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read ``clock``, in seconds."""
        self._clock = clock
        self._times: OrderedDict[str, list[float]] = OrderedDict()

    def note(self, address: str) -> None:
        """Note a wrong try of an address."""
        times = self._times.pop(address, [])
        self._times[address] = [*times, self._clock()][-MOST_WRONG:]
        if len(self._times) > MOST_CALLERS:
            self._times.popitem(last=False)

    def find_wait_s(self, address: str) -> float:
        """Return the seconds for which an address is refused; 0: it is not."""
        times = self._times.get(address, [])
        return max(0.0, times[0] + WRONG_S - self._clock()) if len(times) >= MOST_WRONG else 0.0


class SignInLimit:
    """Middleware that refuses an address which has sent too many wrong API keys to sign in with."""

    def __init__(self, app: ASGIApp, tries: WrongTries) -> None:
        self._app = app
        self._tries = tries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != SIGN_IN:
            return await self._app(scope, receive, send)
        address = str((scope.get("client") or ("",))[0])
        if wait_s := self._tries.find_wait_s(address):
            return await refuse("too many wrong API keys", wait_s)(scope, receive, send)

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == REFUSED:
                self._tries.note(address)
            await send(message)

        return await self._app(scope, receive, note)


def refuse(message: str, wait_s: float) -> JSONResponse:
    """Return the answer to who has to wait."""
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Retry-After": str(math.ceil(wait_s))}
    return JSONResponse(error_body(429, message, code="rate_limit_exceeded"), 429, headers)


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the limit, for a server that has keys to sign in with."""
    del models
    if not options.keys.are_needed:
        return Dialect(routers=())
    tries = WrongTries()
    return Dialect(routers=(), path_middleware=lambda app: SignInLimit(app, tries))
