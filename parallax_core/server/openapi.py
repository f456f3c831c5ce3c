"""Completes the API's description, ``/openapi.json``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from parallax_core.contracts.dialect import ErrorForm
from parallax_core.server.api_schemas import REFERENCE, add_schemas
from parallax_core.server.auth import OPEN_PATHS
from parallax_core.server.dialects import ServedDialects
from parallax_core.server.error_forms import ErrorForms
from parallax_core.server.fields import Strict
from parallax_core.server.response_models import ErrorReply, HealthReply, ResponseModel

Responses = dict[int | str, dict[str, Any]]

MEANINGS = {
    400: "The request can never be served as it is; `param` names the field.",
    401: "No valid API key was sent.",
    403: "The role of the API key does not allow it, or the request came from a web page that is not allowed.",
    404: "No such model, replica or running request.",
    408: "The request took longer than its `timeout`, or did not arrive in time.",
    409: "The models are changing already, or are as is wanted, or cannot be changed here.",
    413: "The body is too large.",
    415: "The body has a `Content-Encoding` other than `gzip`, `deflate` and `identity`.",
    429: "Too many requests wait, or the client sent too many.",
    500: "The model failed on this request.",
    503: "The server is starting or stopping, or the model is not loaded.",
    529: "The server is starting or stopping.",
}

COMES_BACK = {429, 503, 529}
"""The statuses that have a ``Retry-After`` header."""

ANY_POST = (400, 403, 408, 413, 415, 429, 503)
"""The statuses by which a POST may be refused before its route is asked."""


def describe_errors(*statuses: int, model: type[ResponseModel] = ErrorReply) -> Responses:
    """Return the descriptions of a route's error responses."""
    return {status: _describe_error(status, model) for status in statuses}


def describe_answer(model: type[ResponseModel], events: Responses | None = None, *, status: int = 200) -> Responses:
    """Return the description of a route's answer.

    Args:
        model: the answer.
        events: the description of the stream that clients get instead if they ask for it.
        status: the status of the answer.
    """
    alone: dict[str, Any] = {"description": "Successful Response", "content": {}}
    [other] = events.values() if events else [alone]
    return {status: {**other, "content": {**_describe_content(model), **other["content"]}}}


def describe_health() -> Responses:
    """Return the descriptions of the answers of a health route."""
    failed = {"description": MEANINGS[503], "content": _describe_content(HealthReply)}
    return {**describe_answer(HealthReply), 503: failed}


def describe_body(model: type[Strict]) -> dict[str, Any]:
    """Return the description of the body that a route reads, which FastAPI does not find by itself."""
    return {"requestBody": {"required": True, "content": _describe_content(model)}}


def describe_events(chunk: type[ResponseModel]) -> Responses:
    """Return the description of a route's stream of events."""
    data = {"type": "string", "anyOf": [_describe_data(chunk, ErrorReply), {"const": "[DONE]"}]}
    text = "The answer; with `stream`, as server-sent events, which end with `[DONE]` unless an error occurs."
    return _describe_stream(text, {"data": data})


def describe_named_events(last: str, *models: type[ResponseModel]) -> Responses:
    """Return the description of a route's stream of events that have names, the last of which is ``last``."""
    text = f"The answer; with `stream`, as server-sent events, which end with `{last}` unless an error occurs."
    return describe_event_stream(text, *models)


def describe_event_stream(text: str, *models: type[ResponseModel]) -> Responses:
    """Return the description of a route whose events have names and data of one of ``models``."""
    data = {"type": "string", **_describe_data(*models)}
    return _describe_stream(text, {"event": {"type": "string"}, "data": data})


def _describe_data(*models: type[ResponseModel]) -> dict[str, Any]:
    return {"contentMediaType": "application/json", "contentSchema": {"anyOf": _refer(*models)}}


def _describe_content(*models: type[Strict | ResponseModel]) -> dict[str, Any]:
    """Return the description of JSON by reference: FastAPI would make a validator of each model for each status."""
    shapes = _refer(*models)
    return {"application/json": {"schema": {"anyOf": shapes} if len(shapes) > 1 else shapes[0]}}


def _refer(*models: type[Strict | ResponseModel]) -> list[dict[str, str]]:
    return [{"$ref": REFERENCE.format(name=model.__name__)} for model in models]


def _describe_stream(text: str, properties: dict[str, Any]) -> Responses:
    event = {"type": "object", "properties": properties, "required": list(properties)}
    return {200: {"description": text, "content": {"text/event-stream": {"itemSchema": event}}}}


def describe_app(app: FastAPI, dialects: ServedDialects, *, has_keys: bool) -> None:
    """Correct the description of ``app``.

    FastAPI assumes that invalid fields get a 422 with its own schema, and does not describe events and keys.
    """
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _amend(make(), dialects, app.state.error_forms, has_keys=has_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's manual has it

    @app.get("/openapi.json", include_in_schema=False)
    def describe() -> JSONResponse:  # on a thread, since the first time takes too long for the event loop
        return JSONResponse(app.openapi())


def _amend(schema: dict[str, Any], dialects: ServedDialects, forms: ErrorForms, *, has_keys: bool) -> dict[str, Any]:
    parts = schema.setdefault("components", {})
    shapes = parts.setdefault("schemas", {})
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            operation["responses"].pop("422", None)
            if method == "post":
                _add_refusals(operation["responses"], forms.find(path))
    for name in ("HTTPValidationError", "ValidationError"):
        shapes.pop(name, None)
    others = [model for dialect in dialects.opened for model in dialect.schemas]
    add_schemas(schema, others)
    for dialect in dialects.opened:
        if dialect.describe is not None:
            dialect.describe(schema)
    add_schemas(schema)
    if has_keys:
        _ask_key(schema)
    return schema


def _add_refusals(responses: dict[str, Any], form: ErrorForm | None) -> None:
    """Add the errors of any POST to the responses of a route, in the route's form."""
    for status in ANY_POST:
        sent = form.write(status, {"message": ""}, "")[0] if form is not None else status
        model = form.schema if form is not None else None
        responses.setdefault(str(sent), _describe_error(sent, model or ErrorReply))


def _ask_key(schema: dict[str, Any]) -> None:
    header = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}, "header": header}
    schema["security"] = [{"key": []}, {"header": []}]
    for path in OPEN_PATHS & schema["paths"].keys():
        for operation in schema["paths"][path].values():
            operation["security"] = []


def _describe_error(status: int, *models: type[ResponseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": MEANINGS[status], "content": _describe_content(*models)}
    if status in COMES_BACK:
        text = "Seconds after which to try again."
        found["headers"] = {"Retry-After": {"description": text, "schema": {"type": "integer"}}}
    if status == 401:  # noqa: PLR2004 -- the status of a missing key
        found["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return found
