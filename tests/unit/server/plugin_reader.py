"""What a plugin reads bodies with, in whatever process calls it."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from parallax_core.api import InvalidRequest, Ref


class Asked(msgspec.Struct):
    """What a route of a plugin needs of a body."""

    size: int
    pid: int


def read_other(body: bytes) -> Asked:
    """Read a body."""
    if body == b"bad":
        raise InvalidRequest("the body is bad", "body")
    return Asked(len(body), os.getpid())


def rewrite(body: bytes) -> bytes:
    """Give a body the fields that the server knows."""
    if body == b"bad":
        raise InvalidRequest("the body is bad", "body")
    return body.replace(b'"warmth"', b'"temperature"')


REWRITER: Ref[Callable[[bytes], bytes]] = Ref(f"{__name__}:rewrite")
READER: Ref[Callable[[bytes], Asked]] = Ref(f"{__name__}:read_other")
