"""Describes the routes of the server, for whoever writes a description of its API."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from parallax_core.contracts.dialect import ServerDescription
from parallax_core.server.fields import Strict
from parallax_core.server.response_models import ErrorReply, HealthReply, ResponseModel

REFERENCE = "#/components/schemas/{name}"
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


def describe_server(request: Request) -> ServerDescription:
    """Return what the server that got a request declares, for a route that describes it."""
    state = request.app.state
    return ServerDescription(
        routes=request.app.routes,
        dialects=state.dialects.opened,
        find_errors=state.error_forms.find,
        find_role=state.roles.find,
        needs_key=state.has_keys,
    )


def _describe_error(status: int, *models: type[ResponseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": MEANINGS[status], "content": _describe_content(*models)}
    if status in COMES_BACK:
        text = "Seconds after which to try again."
        found["headers"] = {"Retry-After": {"description": text, "schema": {"type": "integer"}}}
    if status == 401:  # noqa: PLR2004 -- the status of a missing key
        found["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return found
