"""Every error a client can see, in OpenAI's shape, in one place."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from parallax_core.base.errors import (
    InvalidRequest,
    Overloaded,
    ParallaxError,
    RequestTimeout,
    Unavailable,
    UnknownName,
)
from parallax_core.server.body import RepeatedField
from parallax_core.server.fields import TOGETHER
from parallax_core.server.schema import NEUTRAL_CHAT, NEUTRAL_COMPLETION

NEUTRAL = {**NEUTRAL_CHAT, **NEUTRAL_COMPLETION}
"""Fields OpenAI's API has and this one has not yet, and the values that ask for nothing."""

logger = logging.getLogger(__name__)

MAX_MESSAGE = 1000
"""The most characters of an error's message."""

KINDS = {
    400: "invalid_request_error",
    413: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
"""The types of errors, in OpenAI's words."""
UNFORESEEN = "server_error"
"""That of all others."""

UNREADABLE: dict[type[BaseException | None], str] = {
    UnicodeDecodeError: "the body is not valid UTF-8",
    RecursionError: "the body is nested too deeply",
    ValueError: "a number in the body has too many digits",
}
"""What keeps JSON from being read, beside its grammar."""


class UnknownModel(ParallaxError):
    """A request names a model that is not served here."""


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body OpenAI's clients expect of an error."""
    message = message.encode(errors="replace").decode()[:MAX_MESSAGE]  # it may quote anything a client sent
    param = param and param.encode(errors="replace").decode()[:MAX_MESSAGE]
    return {"error": {"message": message, "type": KINDS.get(status, UNFORESEEN), "param": param, "code": code}}


def add_handlers(app: FastAPI) -> None:
    """Make ``app`` answer every exception with an error body; what is no `ParallaxError` is a bug, and a 500."""
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(ParallaxError, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)


def error_response(error: ParallaxError) -> JSONResponse:
    """Return the response for one of our own errors."""
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    match error:
        case InvalidRequest():
            return _response(400, error_body(400, message, error.param))
        case UnknownModel() | UnknownName():
            names = ("model", "model_not_found") if isinstance(error, UnknownModel) else (None, "not_found")
            return _response(404, error_body(404, message, *names))
        case RequestTimeout():
            return _response(408, error_body(408, message, "timeout", "timeout"))
        case Overloaded():
            return _response(
                429, error_body(429, message, code="overloaded"), {"Retry-After": str(error.retry_after_s)}
            )
        case Unavailable():
            return _response(503, error_body(503, message), {"Retry-After": str(error.retry_after_s)})
        case _:
            return _response(500, error_body(500, message))


def _response(status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(body, status, headers)


async def _on_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = max(error.errors(), key=_rank)
    if first["type"] == "json_invalid":
        return _response(400, error_body(400, f"the body is not valid JSON: {first['ctx']['error']}"))
    if first["type"] == TOGETHER:
        return _response(400, error_body(400, first["msg"], first["ctx"]["param"]))
    if len(first["loc"]) == 1 and first["type"] != "value_error":
        return _response(400, error_body(400, "the body is no JSON object, or is not sent as application/json"))
    param = ".".join(str(part) for part in first["loc"][1:] if not _is_variant(part)) or None
    return _response(400, error_body(400, _explain(first, param), param))


def _rank(error: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """Of the ways a union failed, the one that got furthest tells most: it knew the type, and the items of the list."""
    return error["type"] == "too_long", not error["type"].endswith("_type"), len(error["loc"])


def _is_variant(part: int | str) -> bool:
    """Whether a part of an error's location names a variant of a union rather than a field."""
    return str(part).startswith(("list[", "function-", "constrained-")) or part in {"str", "[key]"}


def _explain(first: Mapping[str, Any], param: str | None) -> str:
    kind, text = first["type"], str(first["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden" and param in NEUTRAL:
        neutral = " or ".join(repr(value) for value in NEUTRAL[param])
        return f"'{param}' is not supported yet; leave it out" + (f" or send {neutral}" if neutral else "")
    if kind == "extra_forbidden":
        return f"unknown field '{param}'"
    if kind == "missing" and param:
        return f"'{param}' is missing"
    return f"'{param}': {text}" if param else text


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ParallaxError)
    return error_response(error)


async def _on_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RepeatedField):
        return _response(400, error_body(400, str(error.__cause__), error.__cause__.name))
    if (reason := UNREADABLE.get(type(error.__cause__))) is not None:
        return _response(400, error_body(400, reason))
    return _response(error.status_code, error_body(error.status_code, str(error.detail)), error.headers)


async def _on_bug(_: Request, error: Exception) -> JSONResponse:
    logger.error("request failed", exc_info=error)
    return _response(500, error_body(500, "internal error; the server's log has the details"))
