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


READER: Ref[Callable[[bytes], Asked]] = Ref(f"{__name__}:read_other")
