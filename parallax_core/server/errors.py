"""Maps every exception to an HTTP status and an error body in OpenAI's form."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from parallax_core.base.errors import (
    InvalidRequest,
    Overloaded,
    ParallaxError,
    RequestTimeout,
    Unavailable,
    UnknownName,
)
from parallax_core.server.body_messages import UnknownModel, UnknownPart
from parallax_core.server.error_body import error_body
from parallax_core.server.error_forms import ErrorForms, find_request_id, is_below
from parallax_core.server.methods import answer_options, has_path, list_methods
from parallax_core.server.model_errors import ChangeRefused, ModelNotLoaded
from parallax_core.server.strict_json import MOST_QUOTED, explain

logger = logging.getLogger(__name__)

UNKNOWN: dict[type[ParallaxError], tuple[str, str]] = {
    UnknownModel: ("model", "model_not_found"),
    UnknownPart: ("input", "not_found"),
}
"""The field and the code of errors with the status 404."""
LATER: dict[type[Unavailable], tuple[int, str | None, str]] = {
    Overloaded: (429, None, "overloaded"),
    ModelNotLoaded: (503, "model", "model_not_loaded"),
}
"""The status, the field and the code of errors after which a client may ask again; of others, 503 and neither."""
NOT_FOUND, NOT_ALLOWED = 404, 405
OPENAI = "parallax-api-openai"
DISTRIBUTIONS = {
    "/v1/chat/completions": OPENAI,
    "/v1/completions": OPENAI,
    "/v1/embeddings": "parallax-api-embeddings",
    "/v1/messages": "parallax-api-anthropic",
    "/v1/models": OPENAI,
    "/v1/responses": "parallax-api-responses",
    "/v1/stop_request": OPENAI,
}
"""The distributions of this project with the routes below a path, which the user may not have installed."""
API = "/v1"
"""The path prefix of most routes."""
MOST_SEGMENTS = 16
"""The largest number of segments at the end of a path that may be a route."""
GONE = 499
"""The logged status of a request whose client disconnected, as in nginx."""


class ClientGone(Exception):
    """The client disconnected before it was answered."""


def add_handlers(app: FastAPI) -> None:
    """Make ``app`` answer every exception with an error body; all but `ParallaxError` are bugs and get a 500."""
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(ParallaxError, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientGone, _on_gone)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_bug)


def error_response(error: ParallaxError) -> JSONResponse:
    """Return the response for a `ParallaxError`."""
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    match error:
        case InvalidRequest():
            return _response(400, error_body(400, message, error.param))
        case UnknownModel() | UnknownPart() | UnknownName():
            return _response(404, error_body(404, message, *UNKNOWN.get(type(error), (None, "not_found"))))
        case RequestTimeout():
            return _response(408, error_body(408, message, "timeout", "timeout"))
        case ChangeRefused():
            return _response(409, error_body(409, message, code="conflict"))
        case Unavailable():
            status, param, code = LATER.get(type(error), (503, None, None))
            return _response(
                status, error_body(status, message, param, code), {"Retry-After": str(error.retry_after_s)}
            )
        case _:
            return _response(500, error_body(500, message))


def _response(status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(body, status, headers)


async def _on_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(explain([{**each, "loc": each["loc"][1:]} for each in error.errors()]))


async def _on_gone(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=GONE)


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ParallaxError)
    return error_response(error)


async def _on_http(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, scope = error.status_code, http.scope
    if status == NOT_FOUND and not has_path(scope, scope["path"]):
        meant = _find_meant(scope)
        body = error_body(status, _explain_path(scope, meant), code="not_found")
        forms: ErrorForms = http.app.state.error_forms
        if form := forms.find(meant or "") or forms.find_by_header(scope):
            return _response(*form.write(status, body["error"], find_request_id(scope)))
        return _response(status, body)
    if status == NOT_ALLOWED:
        allowed = list_methods(scope, scope["path"])
        if scope["method"] == "OPTIONS":
            return answer_options(allowed)
        message = f"{scope['method']} is not served at {scope['path']}: send {' or '.join(allowed)}"
        message += "; the API is below /v1, such as /v1/chat/completions" if scope["path"] == "/" else ""
        return _response(status, error_body(status, message), {"Allow": ", ".join(allowed)})
    return _response(status, error_body(status, str(error.detail)), error.headers)


def explain_absence(path: str) -> str:
    """Return the remedy for a path that a distribution of this project would serve."""
    missing = next(name for above, name in DISTRIBUTIONS.items() if is_below(path, above))
    return f"{path} is not served here: it comes with {missing}; install it: pip install {missing}"


def _find_meant(scope: Scope) -> str | None:
    """Return a route that the end of an unknown request path names, or None."""
    segments = [each for each in scope["path"].lower().split("/") if each][-MOST_SEGMENTS:]
    for begin in range(len(segments)):
        path = "/" + "/".join(segments[begin:])
        for each in (path, API + path):
            if has_path(scope, each):
                return each
    return None


def _explain_path(scope: Scope, meant: str | None) -> str:
    path: str = scope["path"]
    if any(is_below(path, above) and not has_path(scope, above) for above in DISTRIBUTIONS):
        return explain_absence(path[:MOST_QUOTED])
    path = path if len(path) <= MOST_QUOTED else f"{path[:MOST_QUOTED]}..."
    if meant is not None:
        return f"there is nothing at {path}, but at {meant}: the base URL of the API is that of the server and /v1"
    return f"there is nothing at {path}; the API is below /v1, and GET /openapi.json describes it"


async def _on_bug(http: Request, error: Exception) -> JSONResponse:
    logger.error("request failed", exc_info=error)
    body = error_body(500, "internal error; the server's log has the details")
    forms: ErrorForms = http.app.state.error_forms
    if form := forms.find(http.url.path):  # it is answered outside of all middleware
        return _response(*form.write(500, body["error"], find_request_id(http.scope)))
    return _response(500, body)
