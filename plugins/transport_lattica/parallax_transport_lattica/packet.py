"""Packets of a tunnel: a fixed head, then the content. Nothing in them is ever unpickled.

A packet is pushed to another peer, whose answer is one byte. Packets of one stream and direction have consecutive
numbers, so that lost order and duplicates are repaired by the receiver.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum

MAGIC = b"PLT"
VERSION = 1
"""Version of this layer: the packets of a tunnel. What a tunnel carries has versions of its own."""
STREAM_BYTES = 16
"""Bytes of the random name of a stream: nodes that do not know it cannot add to the stream."""
MOST_CONTENT = 2**17
"""The most bytes of content in a packet."""
MOST_PEER_BYTES = 64
"""The most bytes of the id of a peer."""

NO_STREAM = bytes(STREAM_BYTES)
"""The stream of a `Kind.PING` that only asks whether the peer lives."""

_HEAD = struct.Struct(f"!3sBB{STREAM_BYTES}sQ")


class Kind(IntEnum):
    """The purpose of a packet."""

    OPEN = 1
    """Begins a stream; its content is the id of the peer that sends it."""
    DATA = 2
    END = 3
    """No more data follows."""
    PING = 4
    """Changes nothing: asks whether the peer lives, or whether it has room for the packet of this number."""


class Reply(bytes, Enum):
    """The answer to a packet."""

    TAKEN = b"K"
    BUSY = b"B"
    """Not taken, for want of room: send it again later."""
    UNKNOWN = b"S"
    """There is no such stream."""
    BAD = b"E"
    """It is no packet, or not allowed here."""


class BadPacket(ValueError):
    """These bytes are no packet."""


@dataclass(frozen=True, slots=True)
class Packet:
    """A part of a stream."""

    kind: Kind
    stream: bytes = NO_STREAM
    number: int = 0
    content: bytes = b""

    def pack(self) -> bytes:
        """Return it as bytes."""
        return _HEAD.pack(MAGIC, VERSION, self.kind, self.stream, self.number) + self.content

    @classmethod
    def unpack(cls, data: bytes) -> Packet:
        """Read a packet.

        Raises:
            BadPacket: if it is not a packet, of another version, or too large.
        """
        if not _HEAD.size <= len(data) <= _HEAD.size + MOST_CONTENT:
            raise BadPacket(f"{len(data)} bytes")
        magic, version, kind, stream, number = _HEAD.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION):
            raise BadPacket("another protocol or version")
        try:
            return cls(Kind(kind), stream, number, bytes(data[_HEAD.size :]))
        except ValueError as error:
            raise BadPacket(f"kind {kind}") from error


def read_peer(content: bytes) -> str:
    """Return the id of a peer in the content of an `OPEN`.

    Raises:
        BadPacket: if it is not a packet.
    """
    text = content.decode("ascii", errors="replace")
    if not 0 < len(content) <= MOST_PEER_BYTES or not text.isascii() or not text.isalnum():
        raise BadPacket("no id of a peer")
    return text
