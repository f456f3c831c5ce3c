"""Limits API keys one by one, as their file says, beside the limits that all clients have."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.api.dialect import error_body
from parallax_operate.key_file import ID_LENGTH, KeyLimits, list_keys

LOOK_S = 1.0
"""The shortest interval between two looks at the file, in seconds."""
CLIENT = re.compile(rb"key:(?P<digest>.{32})|caller:\d+:key (?P<session>[0-9a-f]{64})", re.DOTALL)
"""Matches the id of a client with a key, or of a session of the page that was opened by one."""
NO_LIMITS = KeyLimits()

logger = logging.getLogger(__name__)


class LimitTable:
    """The limits of the keys in a file, read again when it changes. Belongs to one event loop.

    Args:
        path: the file.
        clock: returns seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._looked = -math.inf
        self._stamp: tuple[int, ...] = ()
        self._limits: Mapping[str, KeyLimits] = {}

    def find(self, client: bytes) -> tuple[str, KeyLimits]:
        """Return the id of a client's key, and its limits; an empty text and none for a client without a key."""
        if (found := CLIENT.fullmatch(client)) is None:
            return "", NO_LIMITS
        self._look()
        key = (found["digest"].hex() if found["digest"] else found["session"].decode())[:ID_LENGTH]
        return key, self._limits.get(key, NO_LIMITS)

    def _look(self) -> None:
        if (now := self._clock()) - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            seen = self._path.stat()
            stamp = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
            if stamp != self._stamp:
                limits = {each.id: each.limits for each in list_keys(self._path)}
                self._limits, self._stamp = limits, stamp
        except (OSError, ValueError) as error:
            logger.warning("limits of API keys stay as they were: %s", error)


class KeyLimiting:
    """Middleware that answers 429 to clients beyond the limits of their keys.

    ``Retry-After`` says when to try again. It counts POST requests, as the server does for all clients.
    """

    def __init__(
        self,
        app: ASGIApp,
        table: LimitTable,
        identify: Callable[[Scope], bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask ``table`` for limits, and ``identify`` for the id of the client of a request."""
        self._app, self._table, self._identify, self._clock = app, table, identify, clock
        self._running: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}
        """By key: the requests that it may send now, and when that was computed; only of keys with a limit."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        key, limits = self._table.find(self._identify(scope))
        if limits.max_concurrent and self._running[key] >= limits.max_concurrent:
            message = f"your key has {self._running[key]} requests running already"
            await _refuse(message, 1)(scope, receive, send)
        elif wait_s := self._take(key, limits.max_per_minute):
            await _refuse(f"your key may send {limits.max_per_minute} requests a minute", wait_s)(scope, receive, send)
        else:
            await self._count(key, scope, receive, send)

    async def _count(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        self._running[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _take(self, key: str, per_minute: int) -> float:
        """Count a request; return 0, or the seconds until one may be sent."""
        if not per_minute:
            self._buckets.pop(key, None)
            return 0.0
        now, rate = self._clock(), per_minute / 60
        left, seen = self._buckets.get(key, (float(per_minute), now))
        left = min(per_minute, left + (now - seen) * rate)
        self._buckets[key] = (left - 1 if left >= 1 else left), now
        return 0.0 if left >= 1 else (1 - left) / rate


def _refuse(message: str, wait_s: float) -> JSONResponse:
    headers = {"Retry-After": str(math.ceil(wait_s))}
    return JSONResponse(error_body(429, message, code="rate_limit_exceeded"), 429, headers)


def limit_tokens(table: LimitTable, find_general: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """Return what finds the most output tokens of a client: its key's, or the server's if these are fewer; 0: any."""

    def find_most(client: bytes) -> int:
        given = [most for most in (find_general(client), table.find(client)[1].max_output_tokens) if most]
        return min(given, default=0)

    return find_most
