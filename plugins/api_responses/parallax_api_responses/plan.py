"""What reading a request to the Responses API finds out for its answer, besides the engine request."""

from __future__ import annotations

from typing import Literal

import msgspec


class ToolOrigin(msgspec.Struct, frozen=True):
    """The tool of a request that the model calls by another name, or in another way."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str = ""


class KeptHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has for the reading of a body, in `BodyRequest.extra`."""

    has_store: bool = False
    """Whether it keeps responses."""
    history: bytes | None = None
    """The input and output of earlier responses, as a JSON list, if the body continues one."""
    items: bytes | None = None
    """The items that the body refers to, in its order, as a JSON list; None: they were not looked for."""


class WantedHistory(msgspec.Struct, frozen=True):
    """What a body needs of earlier responses, in `MoreNeeded.asked`."""

    previous: str | None
    """The id of the response that it continues."""
    items: tuple[str, ...]
    """The ids of the items that it refers to."""


class ResponsePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a response is written."""

    reply: bytes
    """The `ResponsesReply` before its first part, as JSON, which has numbers of any size: it repeats tools."""
    tools: dict[str, ToolOrigin]
    """The tools, by the names by which the model calls them."""
    input: bytes = b"[]"
    """The parts of its own input, as a JSON list; only if the response is kept."""
    previous: str | None = None
    """The response that it continues."""
    stores: bool = False
    """Keep the response."""
    in_background: bool = False
    """Generate it whether the client listens or not."""
    summarizes: bool = False
    """Send the reasoning as its summary."""
    encrypts: bool = False
    """Send the reasoning as ``encrypted_content``, too."""


def read_plan(data: bytes) -> ResponsePlan:
    """Return the plan in `ResponseForm.plan`."""
    return msgspec.msgpack.decode(data, type=ResponsePlan)
