"""The header ``X-Ignored-Fields``: names the unknown fields that the lenient mode has ignored."""

from __future__ import annotations

import logging
import re
from itertools import islice

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.server.unknown_fields import IGNORED, MOST_NAMED

HEADER = "X-Ignored-Fields"
logger = logging.getLogger(__name__)


class IgnoredFieldsHeader:
    """Middleware that has unknown fields ignored, and names them in a response header and the log."""

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
