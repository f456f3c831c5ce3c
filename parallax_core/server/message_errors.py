"""Writes errors in the form of the API that a path belongs to, whichever layer raised them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.server.json_pieces import JsonObject, to_json

PATH = "/v1/messages"
"""The path of the Messages routes, with all paths below it."""
MODELS = "/v1/models"
"""The path of the routes that list models."""
VERSION_HEADER = "anthropic-version"
"""The header with the API version that Anthropic's clients want."""
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


ErrorWriter = Callable[[int, Mapping[str, Any], Scope], tuple[int, JsonObject]]
"""Returns the status and the body for an error in OpenAI's form."""


def convert_error(status: int, error: Mapping[str, Any], scope: Scope) -> tuple[int, JsonObject]:
    """Return the status and the body for an error in OpenAI's form; the message names the field."""
    status = OVERLOADED if status == UNAVAILABLE else status
    kind = KINDS.get(status, "api_error" if status >= SERVER_ERROR else "invalid_request_error")
    message, param = str(error["message"]), error.get("param")
    if param and f"'{param}" not in message and not message.startswith(param):
        message = f"{param}: {message}"
    return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": find_request_id(scope)}


class ErrorForms:
    """The paths whose errors have another form than OpenAI's."""

    def __init__(self) -> None:
        self._writers: dict[str, ErrorWriter] = {PATH: convert_error}

    def add(self, path: str, write: Callable[[int, str], JsonObject]) -> None:
        """Add a path; see `parallax_core.contracts.surface.HttpSurface.write_errors`."""
        if any(is_below(path, taken) or is_below(taken, path) for taken in (*self._writers, "/v1")):
            raise ValueError(f"errors at {path} have a form already")
        self._writers[path] = lambda status, error, _: (status, write(status, str(error["message"])))

    def copy(self) -> ErrorForms:
        """Return the same paths, to which others may be added."""
        copied = ErrorForms()
        copied.take(self)
        return copied

    def take(self, other: ErrorForms) -> None:
        """Add all paths of another one."""
        self._writers.update(other._writers)

    def find(self, path: str) -> ErrorWriter | None:
        """Return the writer of the errors at a path; None: they have OpenAI's form."""
        return next((write for above, write in self._writers.items() if is_below(path, above)), None)

    def find_for(self, scope: Scope) -> ErrorWriter | None:
        """Return the writer of the errors of a request; Anthropic's clients share the path of the models."""
        is_shared = is_below(scope["path"], MODELS) and VERSION_HEADER in Headers(scope=scope)
        return convert_error if is_shared else self.find(scope["path"])


def is_below(path: str, above: str) -> bool:
    """Return whether a path is another one, or below it."""
    return path == above or path.startswith(f"{above}/")


class MessageErrors:
    """Middleware that converts errors into the form of their path, and sends the id of a request as ``request-id``."""

    def __init__(self, app: ASGIApp, forms: ErrorForms) -> None:
        self._app = app
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        write = self._forms.find_for(scope) if scope["type"] == "http" else None
        if write is None:
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
                await _send_error(start, msgspec.json.decode(bytes(body)), write, scope, send)

        await self._app(scope, receive, convert)


def find_request_id(scope: Scope) -> str:
    """Return the id that the access log gave a request."""
    return str(scope.get("state", {}).get("request_id", ""))


async def _send_error(start: Message, content: Any, write: ErrorWriter, scope: Scope, send: Send) -> None:  # noqa: ANN401
    """Send a response whose start and body may have OpenAI's form; a plugin's own errors have its form already."""
    if isinstance(error := content.get("error"), dict):
        start["status"], content = write(start["status"], error, scope)
    data = to_json(content)
    MutableHeaders(scope=start)["content-length"] = str(len(data))
    await send(start)
    await send({"type": "http.response.body", "body": data})
