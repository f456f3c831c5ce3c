"""Short messages of a connection, besides the parts of frames; the first byte is the type.

Each is one ZeroMQ message with a single part: a receiver limits the size of each message, and one that listens also
the number of those that wait, but not the number of parts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

MAGIC = b"PLX"
VERSION = 1
"""Version of this layer: greetings, credit and the cutting of frames. The content of frames has its own version."""
ENROL_VERSION = 2
"""Version of the request to be admitted. From 2 on it begins, in any version, with `MAGIC`, its version, and the
versions of the machine as core writes them, after their size in two bytes."""


class Kind(bytes, Enum):
    """The first byte of a message."""

    HELLO = b"H"
    WELCOME = b"W"
    REFUSE = b"R"
    FRAME = b"F"
    """The head of a frame; its larger parts follow as they are, without such a byte."""
    TAKEN = b"T"
    BEAT = b"B"
    """A sign of life, which may say how often the sender wants those of the peer."""
    BYE = b"E"
    HEARD_BYE = b"A"
    ENROL = b"N"
    """Sent instead of a greeting by a machine with a join code."""
    ENROLLED = b"Y"
    INCOMPATIBLE = b"V"
    """The answer to a machine whose version of Parallax cannot work with this node's; a reason, like `REFUSE`."""


MOST_NAME = 256
"""Longest name of a node, in characters."""
MOST_REASON = 300
"""Longest reason of a refusal or a goodbye, in characters."""

_GREETING = struct.Struct("!3sBIH")
_WELCOME = struct.Struct("!I")
_TAKEN = struct.Struct("!Q")
_BEAT = struct.Struct("!I")
_ENROL = struct.Struct("!3sBH")
KEY_BYTES = 32


class BadMessage(ValueError):
    """The peer sent an unknown message, or one out of order."""


class OtherVersion(BadMessage):
    """A greeting in another version of this layer."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The caller of a link, the node it calls, and its credit in frames."""

    sender: str
    receiver: str
    credit: int

    def pack(self) -> bytes:
        """Return it as a message."""
        sender = self.sender.encode()
        return Kind.HELLO + _GREETING.pack(MAGIC, VERSION, self.credit, len(sender)) + sender + self.receiver.encode()

    @classmethod
    def unpack(cls, message: bytes) -> Hello:
        """Read a message.

        Raises:
            OtherVersion: if it is a greeting in another version.
            BadMessage: if it is no greeting.
        """
        if len(message) < 1 + _GREETING.size or message[:1] != Kind.HELLO:
            raise BadMessage("no greeting")
        magic, version, credit, size = _GREETING.unpack_from(message, 1)
        if magic != MAGIC:
            raise BadMessage("no greeting")
        if version != VERSION:
            raise OtherVersion(f"version {VERSION} of links is spoken here, not {version}")
        names = message[1 + _GREETING.size :]
        return cls(read_name(names[:size]), read_name(names[size:]), check_credit(credit))


def pack_welcome(node: str, credit: int) -> bytes:
    """Encode the name of the node that answers, and its credit in frames."""
    return Kind.WELCOME + _WELCOME.pack(credit) + node.encode()


def unpack_welcome(message: bytes) -> tuple[str, int]:
    """Return the name and the credit in a welcome.

    Raises:
        BadMessage: if it is malformed.
    """
    if len(message) < 1 + _WELCOME.size or message[:1] != Kind.WELCOME:
        raise BadMessage("no welcome")
    (credit,) = _WELCOME.unpack_from(message, 1)
    return read_name(message[1 + _WELCOME.size :]), check_credit(credit)


@dataclass(frozen=True, slots=True)
class EnrolRequest:
    """Asks for a machine to be admitted by a code."""

    version: int
    versions: bytes
    """The versions of the machine, as core writes them."""
    rest: bytes

    @classmethod
    def unpack(cls, message: bytes) -> EnrolRequest:
        """Read the part of a message that is the same in all versions.

        Raises:
            OtherVersion: if it is of a version that has no such part.
            BadMessage: if it is malformed.
        """
        if len(message) < 1 + _ENROL.size or message[:1] != Kind.ENROL:
            raise BadMessage("no request to be admitted")
        magic, version, size = _ENROL.unpack_from(message, 1)
        if magic != MAGIC:
            raise BadMessage("no request to be admitted")
        if version < ENROL_VERSION:
            raise OtherVersion("its version of Parallax is older than the server's: install the same one")
        body = message[1 + _ENROL.size :]
        if len(body) < size:
            raise BadMessage("no request to be admitted")
        return cls(version, body[:size], body[size:])

    def read(self) -> tuple[bytes, str]:
        """Return the machine's own key, and the name that it would like to have.

        Raises:
            OtherVersion: if it is of another version.
            BadMessage: if it is malformed.
        """
        if self.version != ENROL_VERSION:
            raise OtherVersion(f"version {ENROL_VERSION} of requests to join is spoken here, not {self.version}")
        if len(self.rest) <= KEY_BYTES:
            raise BadMessage("no request to be admitted")
        return self.rest[:KEY_BYTES], read_name(self.rest[KEY_BYTES:])


def pack_enrol(versions: bytes, key: bytes, machine: str) -> bytes:
    """Encode the versions and the own key of a machine that joins by a code, and the name it would like to have."""
    return Kind.ENROL + _ENROL.pack(MAGIC, ENROL_VERSION, len(versions)) + versions + key + machine.encode()


def pack_enrolled(machine: str) -> bytes:
    """Encode the name by which a machine is admitted."""
    return Kind.ENROLLED + machine.encode()


def unpack_enrolled(message: bytes) -> str:
    """Return the name by which this machine is admitted.

    Raises:
        BadMessage: if it is malformed.
    """
    if message[:1] != Kind.ENROLLED:
        raise BadMessage("no admission")
    return read_name(message[1:])


def pack_taken(count: int) -> bytes:
    """Encode the number of frames taken since the link began."""
    return Kind.TAKEN + _TAKEN.pack(count)


def unpack_taken(message: bytes) -> int:
    """Return the number of frames taken since the link began.

    Raises:
        BadMessage: if the message is malformed.
    """
    if len(message) != 1 + _TAKEN.size:
        raise BadMessage(f"a count of {len(message)} bytes")
    return int(_TAKEN.unpack_from(message, 1)[0])


def pack_beat(wanted_s: float) -> bytes:
    """Encode a heartbeat of an end that wants one of the peer every ``wanted_s`` seconds."""
    return Kind.BEAT + _BEAT.pack(min(round(1000 * wanted_s), 2**32 - 1))


def unpack_beat(message: bytes) -> float | None:
    """Return how often, in seconds, the sender of a heartbeat wants those of the peer; None: it does not say.

    Raises:
        BadMessage: if the message is malformed.
    """
    if len(message) == 1:
        return None
    if len(message) != 1 + _BEAT.size:
        raise BadMessage(f"a heartbeat of {len(message)} bytes")
    return float(_BEAT.unpack_from(message, 1)[0]) / 1000


def pack_reason(kind: Kind, reason: str) -> bytes:
    """Return a message of ``kind`` that gives a reason."""
    return kind + reason[:MOST_REASON].encode()


def unpack_reason(message: bytes) -> str:
    """Return the reason in a message, made harmless for a terminal."""
    text = message[1 : 1 + 4 * MOST_REASON].decode(errors="replace")[:MOST_REASON]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def check_name(name: str) -> str:
    """Return the name of a node.

    Raises:
        BadMessage: if it is too long or has characters that cannot be printed.
    """
    if not 0 < len(name) <= MOST_NAME or not name.isprintable():
        raise BadMessage(f"a name has 1 to {MOST_NAME} printable characters")
    return name


def read_name(data: bytes) -> str:
    """Return the name of a node.

    Raises:
        BadMessage: if it is malformed.
    """
    try:
        return check_name(data.decode())
    except UnicodeDecodeError as error:
        raise BadMessage("a name that is not in UTF-8") from error


def check_credit(credit: int) -> int:
    """Return a credit.

    Raises:
        BadMessage: if it is 0.
    """
    if credit < 1:
        raise BadMessage("a credit of 0 frames")
    return credit
