"""Defines the message that brings the log of a node to its head."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from parallax_core.api import ServiceMessage, service_tag

MOST_LINES, MOST_TEXT = 8, 500
"""The most lines of a message, and characters of a line."""


class NodeLine(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A line of a node's log."""

    time: Annotated[float, Meta(ge=0, le=2**40)]
    """In seconds since 1970."""
    level: Annotated[str, Meta(max_length=16)]
    logger: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=MOST_TEXT)]


class NodeLines(ServiceMessage, frozen=True, tag=service_tag("parallax-observe", 0)):
    """Lines of a node's log; from the node to its head."""

    most_bytes: ClassVar[int] = 20_480
    most_per_s: ClassVar[float] = 4.0

    lines: Annotated[tuple[NodeLine, ...], Meta(max_length=MOST_LINES)]


ALL = (NodeLines,)
