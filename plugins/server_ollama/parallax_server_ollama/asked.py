"""What a request asks for, as far as the routes need to know it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

LATEST = ":latest"
"""The tag that Ollama's clients add to names without one."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request to Ollama's API, turned into one for a route of the server."""

    model: str
    """The model as the client names it."""
    path: str = ""
    """The route of the server that answers; empty: there is nothing to answer."""
    body: bytes = b""
    """The JSON for that route."""
    streams: bool = False
    context: int = 0
    """The tokens of the context that the client wants; 0: it does not say."""
    unloads: bool = False
    """Whether the client wants the model to leave the memory."""


def name_model(name: str) -> str:
    """Return the id of a model by its name in Ollama's API, unless the server has one of that very name."""
    return name.removesuffix(LATEST)


def write_body(fields: dict[str, Any]) -> bytes:
    """Return the JSON of a request to a route of the server; ``model`` is its first field."""
    return json.dumps(fields).encode()


def name_exactly(asked: Asked) -> bytes:
    """Return the body of a request with the name of the model as the client has it."""
    begin = write_body({"model": name_model(asked.model)})[:-1]
    return write_body({"model": asked.model})[:-1] + asked.body.removeprefix(begin)
