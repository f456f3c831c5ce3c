"""The header ``X-Ignored-Fields``: names parts of a request that were left out or unknown."""

from __future__ import annotations

import logging
import re
from itertools import islice

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.server.unknown_fields import IGNORED, LEFT_OUT, MOST_NAMED

HEADER = "X-Ignored-Fields"
MOST_LOGGED = 256
"""The most different warnings: a client chooses the names of the fields."""
logger = logging.getLogger(__name__)


class IgnoredFieldsHeader:
    """Middleware that names what was ignored of a request in a header of the response and in the log."""

    def __init__(self, app: ASGIApp, *, is_lenient: bool) -> None:
        """Wrap ``app``; ``is_lenient``: have unknown fields ignored, which are refused otherwise."""
        self._app, self._is_lenient = app, is_lenient
        self._logged = set[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        ignored: dict[str, None] = {}

        async def tag(message: Message) -> None:
            if message["type"] == "http.response.start" and ignored:
                names = [re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in islice(ignored, MOST_NAMED)]
                MutableHeaders(scope=message)[HEADER] = ", ".join(names)
                self._log(", ".join(names))
            await send(message)

        tokens = IGNORED.set(ignored if self._is_lenient else None), LEFT_OUT.set(ignored)
        try:
            await self._app(scope, receive, tag)
        finally:
            IGNORED.reset(tokens[0])
            LEFT_OUT.reset(tokens[1])

    def _log(self, names: str) -> None:
        """Log ignored fields: as a warning the first time, since agents send the same ones with every request."""
        is_new = names not in self._logged and len(self._logged) < MOST_LOGGED
        if is_new:
            self._logged.add(names)
        logger.log(logging.WARNING if is_new else logging.DEBUG, "ignored fields: %s", names)
