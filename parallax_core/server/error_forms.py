"""Writes errors in the form of the API that a path belongs to, whichever layer raised them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.contracts.dialect import ErrorForm
from parallax_core.server.json_pieces import JsonObject, to_json

MODELS = "/v1/models"
"""The path of the routes that list models, where clients of several APIs ask."""
REQUEST_ID = "request-id"
"""The header in which clients of other APIs than OpenAI's look for the id of a request."""
ERROR = 400
JSON = "application/json"


class ErrorForms:
    """The paths and headers of APIs whose errors have another form than OpenAI's."""

    def __init__(self, forms: Iterable[ErrorForm] = ()) -> None:
        self._paths: dict[str, ErrorForm] = {}
        self._headers: dict[str, ErrorForm] = {}
        for form in forms:
            self._paths |= dict.fromkeys(form.paths, form)
            if form.header:
                self._headers[form.header] = form

    @property
    def all(self) -> list[ErrorForm]:
        """The forms, each once."""
        return list({id(form): form for form in self._paths.values()}.values())

    @property
    def headers(self) -> frozenset[str]:
        """The headers by which clients of an API are known."""
        return frozenset(self._headers)

    def add(self, path: str, write: Callable[[int, str], JsonObject]) -> None:
        """Add a path; see `parallax_core.contracts.surface.HttpSurface.write_errors`."""
        if any(is_below(path, taken) or is_below(taken, path) for taken in (*self._paths, "/v1")):
            raise ValueError(f"errors at {path} have a form already")

        def convert(status: int, error: Any, _: str) -> tuple[int, JsonObject]:  # noqa: ANN401 -- a JSON object
            return status, write(status, str(error["message"]))

        self._paths[path] = ErrorForm(paths=(path,), write=convert)

    def copy(self) -> ErrorForms:
        """Return the same forms, to which others may be added."""
        copied = ErrorForms()
        copied.take(self)
        return copied

    def take(self, other: ErrorForms) -> None:
        """Add all forms of another one."""
        self._paths.update(other._paths)
        self._headers.update(other._headers)

    def find(self, path: str) -> ErrorForm | None:
        """Return the form of the errors at a path; None: OpenAI's."""
        return next((form for above, form in self._paths.items() if is_below(path, above)), None)

    def find_by_header(self, scope: Scope) -> ErrorForm | None:
        """Return the form of the API that a client asks for by a header; None: OpenAI's."""
        given = Headers(scope=scope)
        return next((form for header, form in self._headers.items() if header in given), None)

    def find_for(self, scope: Scope) -> ErrorForm | None:
        """Return the form of the errors of a request; clients of several APIs share the path of the models."""
        return self.find_by_header(scope) if is_below(scope["path"], MODELS) else self.find(scope["path"])


def is_below(path: str, above: str) -> bool:
    """Return whether a path is another one, or below it."""
    return path == above or path.startswith(f"{above}/")


class ErrorFormMiddleware:
    """Middleware that converts errors into the form of their path, and sends the id of a request as ``request-id``."""

    def __init__(self, app: ASGIApp, forms: ErrorForms) -> None:
        self._app = app
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        form = self._forms.find_for(scope) if scope["type"] == "http" else None
        if form is None:
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
                await _send_error(start, msgspec.json.decode(bytes(body)), form, scope, send)

        await self._app(scope, receive, convert)


def find_request_id(scope: Scope) -> str:
    """Return the id that the access log gave a request."""
    return str(scope.get("state", {}).get("request_id", ""))


async def _send_error(start: Message, content: Any, form: ErrorForm, scope: Scope, send: Send) -> None:  # noqa: ANN401
    """Send a response whose start and body may have OpenAI's form; a plugin's own errors have its form already."""
    if isinstance(error := content.get("error"), dict):
        start["status"], content = form.write(start["status"], error, find_request_id(scope))
    data = to_json(content)
    MutableHeaders(scope=start)["content-length"] = str(len(data))
    await send(start)
    await send({"type": "http.response.body", "body": data})
