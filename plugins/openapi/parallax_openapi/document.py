"""Writes the description of a server, an OpenAPI document."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi.openapi.utils import get_openapi

from parallax_core.api import ErrorForm, ServerDescription
from parallax_core.api.dialect import describe_errors
from parallax_openapi.schemas import add_schemas

ANY_POST = (400, 403, 408, 413, 415, 429, 503)
"""The statuses by which a POST may be refused before its route is asked."""


def write_document(server: ServerDescription) -> dict[str, Any]:
    """Return the description of a server.

    FastAPI assumes that invalid fields get a 422 with its own schema, and does not describe events and keys.
    """
    version = metadata.version("parallax-core")
    document = get_openapi(title="Parallax", version=version, routes=server.routes)
    shapes = document.setdefault("components", {}).setdefault("schemas", {})
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["responses"].pop("422", None)
            if method == "post":
                _add_refusals(operation["responses"], server.find_errors(path))
    for name in ("HTTPValidationError", "ValidationError"):
        shapes.pop(name, None)
    add_schemas(document, [model for dialect in server.dialects for model in dialect.schemas])
    for dialect in server.dialects:
        if dialect.describe is not None:
            dialect.describe(document)
    add_schemas(document)
    if server.needs_key:
        _ask_key(document, server)
    return document


def _add_refusals(responses: dict[str, Any], form: ErrorForm | None) -> None:
    """Add the errors of any POST to the responses of a route, in the route's form."""
    model = {} if form is None or form.schema is None else {"model": form.schema}
    for status in ANY_POST:
        sent = form.write(status, {"message": ""}, "")[0] if form is not None else status
        [described] = describe_errors(sent, **model).values()
        responses.setdefault(str(sent), described)


def _ask_key(document: dict[str, Any], server: ServerDescription) -> None:
    header = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}, "header": header}
    document["security"] = [{"key": []}, {"header": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if server.find_role(path, method.upper()) is None:
                operation["security"] = []
