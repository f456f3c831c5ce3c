"""Writes errors of the Messages routes in Anthropic's form, whatever part of the server has refused the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.server.json_pieces import JsonObject, to_json

PATH = "/v1/messages"
"""The path of the Messages routes, with all paths below it."""
VERSION_HEADER = "anthropic-version"
"""The header by which Anthropic's clients say which version of the API they want."""
REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for the id of a request."""

OVERLOADED = 529
"""The status of ``overloaded_error``, which stands for 503."""
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
"""Anthropic's error type for each status; the others are ``invalid_request_error`` below 500, else ``api_error``."""
UNAVAILABLE, SERVER_ERROR, ERROR = 503, 500, 400
JSON = "application/json"


def is_messages_path(path: str) -> bool:
    """Return whether errors at this path have Anthropic's form."""
    return path == PATH or path.startswith(f"{PATH}/")


def convert_error(status: int, error: Mapping[str, Any], scope: Scope) -> tuple[int, JsonObject]:
    """Return the status and the body for an error in OpenAI's form; the message names the field."""
    status = OVERLOADED if status == UNAVAILABLE else status
    kind = KINDS.get(status, "api_error" if status >= SERVER_ERROR else "invalid_request_error")
    message, param = str(error["message"]), error.get("param")
    if param and f"'{param}" not in message and not message.startswith(param):
        message = f"{param}: {message}"
    return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": find_request_id(scope)}


class MessageErrors:
    """Middleware that converts the errors of the Messages routes, and sends the id of a request as ``request-id``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or not is_messages_path(scope["path"]):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def convert(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = find_request_id(scope)
                if message["status"] >= ERROR and headers.get("content-type") == JSON:
                    start = message
                    return
            if start is None:
                await send(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                await _send_error(start, bytes(body), scope, send)

        await self._app(scope, receive, convert)


def find_request_id(scope: Scope) -> str:
    """Return the id that the access log gave a request."""
    return str(scope.get("state", {}).get("request_id", ""))


async def _send_error(start: Message, body: bytes, scope: Scope, send: Send) -> None:
    """Send a response whose start and body have OpenAI's form."""
    start["status"], content = convert_error(start["status"], msgspec.json.decode(body)["error"], scope)
    data = to_json(content)
    MutableHeaders(scope=start)["content-length"] = str(len(data))
    await send(start)
    await send({"type": "http.response.body", "body": data})
