"""Limits the requests of each client, per minute and at the same time."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.server.client_id import identify
from parallax_core.server.error_body import error_body
from parallax_core.server.options import ServerOptions

KEPT = "/v1/responses/"
"""The beginning of the paths of kept responses."""
MOST_CALLERS = 10_000
"""The largest number of buckets kept; the least recently used one is dropped, which refills it."""


@dataclass(slots=True)
class Bucket:
    """A token bucket, refilled at a steady rate (as in RFC 2697, with one rate)."""

    tokens: float
    seen: float


class RateLimit:
    """Middleware that answers 429 to clients that send too many requests; ``Retry-After`` says when to try again.

    It counts POST requests, which use the model, and apart from them, at the same time only, those that read kept
    responses.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._has_keys = options.keys.are_needed
        self._max_concurrent = options.max_concurrent or math.inf
        self._per_minute = options.max_per_minute
        self._clock = clock
        self._running: Counter[tuple[bytes, str]] = Counter()
        self._buckets: OrderedDict[bytes, Bucket] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        kind = _find_kind(scope)
        if kind is None:
            await self._app(scope, receive, send)
            return
        client = identify(scope, by_key=self._has_keys)
        caller = (client, kind)
        if self._running[caller] >= self._max_concurrent:
            await self._refuse(f"you have {self._running[caller]} requests running already", 1)(scope, receive, send)
            return
        if kind == "POST" and (wait_s := self._take(client)):
            await self._refuse(f"more than {self._per_minute} requests a minute", wait_s)(scope, receive, send)
            return
        self._running[caller] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[caller] -= 1
            if not self._running[caller]:
                del self._running[caller]

    def _take(self, caller: bytes) -> float:
        """Take a token of the client's; return 0, or the seconds until there is one."""
        if not self._per_minute:
            return 0.0
        now, rate = self._clock(), self._per_minute / 60
        bucket = self._buckets.setdefault(caller, Bucket(self._per_minute, now))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._per_minute, bucket.tokens + (now - bucket.seen) * rate)
        bucket.seen = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / rate
        bucket.tokens -= 1
        return 0.0

    @staticmethod
    def _refuse(message: str, wait_s: float) -> JSONResponse:
        headers = {"Retry-After": str(math.ceil(wait_s))}
        return JSONResponse(error_body(429, message, code="rate_limit_exceeded"), 429, headers)


def _find_kind(scope: Scope) -> str | None:
    """Return the method of a request that counts; None: it does not."""
    if scope["type"] != "http":
        return None
    method: str = scope["method"]
    return method if method == "POST" or (method == "GET" and scope["path"].startswith(KEPT)) else None
