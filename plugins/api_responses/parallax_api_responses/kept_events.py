"""Packs the events of a response, so that they can be read again from any one, in pieces."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

BLOCK = 2**18
"""The bytes of a block, before it is compressed: all that a reader has of a response at a time."""
QUICK = 1
"""zlib's level: the quickest."""


class PackedEvents(NamedTuple):
    """The events of a response."""

    lengths: bytes
    """The bytes of each event, as an array of 64-bit integers."""
    blocks: tuple[bytes, ...]
    """All events in their order, in blocks of `BLOCK` bytes, each compressed by itself."""


class EventPlace(NamedTuple):
    """Where an event begins."""

    start: int
    """Bytes of all events before it."""
    total: int
    """Bytes of all events."""


def pack_events(events: Sequence[bytes]) -> PackedEvents:
    """Return the events as they are kept."""
    whole = memoryview(b"".join(events))
    blocks = tuple(zlib.compress(whole[at : at + BLOCK], QUICK) for at in range(0, len(whole), BLOCK))
    return PackedEvents(array("Q", map(len, events)).tobytes(), blocks)


def find_event(lengths: bytes, number: int) -> EventPlace:
    """Return where an event begins; one that does not exist begins at the end."""
    sizes = array("Q")
    sizes.frombytes(lengths)
    return EventPlace(sum(sizes[:number]), sum(sizes))


def unpack_block(block: bytes) -> bytes:
    """Return the bytes of a block."""
    return zlib.decompress(block)
