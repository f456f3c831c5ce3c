"""What a request asks for, as far as the routes need to know it."""

from __future__ import annotations

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
    """Return the id of a model by its name in Ollama's API."""
    return name.removesuffix(LATEST)
