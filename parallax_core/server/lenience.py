"""Unknown fields, where the server was told to put up with them."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextvars import ContextVar
from itertools import islice

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Ignored-Fields"
MOST_NAMED = 20
IGNORED: ContextVar[dict[str, None] | None] = ContextVar("IGNORED", default=None)
"""The fields of the request at hand that were ignored; None where none may be."""

logger = logging.getLogger(__name__)


def drop_unknown(body: dict[str, object], known: Collection[str], place: str) -> dict[str, object]:
    """Return what is to be looked at of an object, which lies at ``place`` in the body.

    Unknown fields are dropped and noted, if they may be ignored. Otherwise the first of them stays, to be refused: to
    complain of a million takes so long that nobody else is answered.
    """
    unknown = [name for name in body if name not in known]
    if not unknown:
        return body
    if (ignored := IGNORED.get()) is None:
        return {name: value for name, value in body.items() if name in known or name == unknown[0]}
    ignored.update(dict.fromkeys(f"{place}{name}" for name in unknown))
    return {name: value for name, value in body.items() if name in known}


class Lenience:
    """Middleware that lets unknown fields pass; a response header and the log name them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        ignored: dict[str, None] = {}

        async def tag(message: Message) -> None:
            if message["type"] == "http.response.start" and ignored:
                names = [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in islice(ignored, MOST_NAMED)]
                MutableHeaders(scope=message)[HEADER] = ", ".join(names)
                logger.warning("ignored unknown fields: %s", ", ".join(names))
            await send(message)

        token = IGNORED.set(ignored)
        try:
            await self._app(scope, receive, tag)
        finally:
            IGNORED.reset(token)
