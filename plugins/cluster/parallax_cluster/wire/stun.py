"""STUN binding requests (RFC 8489): a machine learns the address that others see.

Only what that takes: no authentication, no fingerprint, and none of the other methods. An answer is no longer than its
request, so that a sender gains nothing by forging its address; `make_request` is long enough for that.
Strangers send what they like: whatever is not well formed is None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

HEAD = struct.Struct("!HHI12s")
"""The type of the message, the bytes that follow, the magic cookie, the transaction."""
ATTRIBUTE = struct.Struct("!HH")
"""The type of an attribute, and its bytes, which are padded to a multiple of 4."""
MAGIC = 0x2112A442
REQUEST, SUCCESS = 0x0001, 0x0101
MAPPED, CHANGE, XOR_MAPPED, SOFTWARE = 0x0001, 0x0003, 0x0020, 0x8022
OPTIONAL = 0x8000
"""Attributes from this one on may be ignored by who does not know them."""
CHANGE_PORT = 0x02
"""Of CHANGE-REQUEST (RFC 5780): have the answer sent from the other port."""
FAMILIES: dict[int, type[IPv4Address | IPv6Address]] = {1: IPv4Address, 2: IPv6Address}
PLACE = struct.Struct("!xBH")
"""What an address begins with: its family and its port."""
NAME = b"parallax"
"""By which an answer shows that it comes from Parallax, and so that CHANGE-REQUEST is known."""
REQUEST_BYTES = 64
MOST_BYTES = 548
"""The most bytes of a message that is read; more than any server sends to a request like ours."""
TRANSACTION_BYTES = 12

HostPort = tuple[str, int]
"""An IP address and a port."""


@dataclass(frozen=True, slots=True)
class StunRequest:
    """A request of a machine that wants to know its address."""

    transaction: bytes
    changes_port: bool = False
    """Whether the answer is to come from the other port."""


@dataclass(frozen=True, slots=True)
class StunAnswer:
    """What a server has seen."""

    address: HostPort
    is_parallax: bool
    """Whether the server is one of Parallax."""


def make_request(transaction: bytes, *, changes_port: bool = False) -> bytes:
    """Return a request of `REQUEST_BYTES`; ``transaction`` is `TRANSACTION_BYTES`, unpredictable."""
    change = _pack(CHANGE, struct.pack("!I", CHANGE_PORT)) if changes_port else b""
    room = REQUEST_BYTES - HEAD.size - len(change) - ATTRIBUTE.size
    body = _pack(SOFTWARE, NAME.ljust(room)) + change
    return HEAD.pack(REQUEST, len(body), MAGIC, transaction) + body


def read_request(data: bytes) -> StunRequest | None:
    """Return the request in a datagram, or None if it is not a request or has unknown attributes."""
    found = _read(data, REQUEST)
    if found is None:
        return None
    transaction, attributes = found
    change = attributes.pop(CHANGE, bytes(4))
    if any(each < OPTIONAL for each in attributes) or change not in {bytes(4), struct.pack("!I", CHANGE_PORT)}:
        return None
    return StunRequest(transaction, change != bytes(4))


def answer_request(data: bytes, address: HostPort) -> tuple[bytes, StunRequest] | None:
    """Return the answer to a datagram that came from ``address``, and the request in it; None: there is no answer."""
    request = read_request(data)
    if request is None:
        return None
    body = _pack(XOR_MAPPED, _write_address(address, request.transaction)) + _pack(SOFTWARE, NAME)
    answer = HEAD.pack(SUCCESS, len(body), MAGIC, request.transaction) + body
    return (answer, request) if len(answer) <= len(data) else None


def read_answer(data: bytes, transaction: bytes) -> StunAnswer | None:
    """Return the answer in a message to the request with ``transaction``, or None."""
    found = _read(data, SUCCESS)
    if found is None or found[0] != transaction:
        return None
    attributes = found[1]
    if (masked := attributes.get(XOR_MAPPED)) is not None:
        address = _read_address(masked, _mask(transaction))
    else:
        address = _read_address(attributes.get(MAPPED, b""), bytes(16))
    return None if address is None else StunAnswer(address, attributes.get(SOFTWARE) == NAME)


def _read(data: bytes, kind: int) -> tuple[bytes, dict[int, bytes]] | None:
    """Return the transaction and the attributes of a message, of equal ones the first."""
    if not HEAD.size <= len(data) <= MOST_BYTES:
        return None
    its_kind, size, magic, transaction = HEAD.unpack_from(data)
    if its_kind != kind or magic != MAGIC or size != len(data) - HEAD.size or size % 4:
        return None
    attributes: dict[int, bytes] = {}
    for name, value in _list_attributes(data[HEAD.size :]):
        if value is None:
            return None
        attributes.setdefault(name, value)
    return transaction, attributes


def _list_attributes(body: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield each attribute; without a value: it is longer than the message."""
    at = 0
    while at < len(body):
        name, size = ATTRIBUTE.unpack_from(body, at)
        at += ATTRIBUTE.size
        yield name, body[at : at + size] if at + size <= len(body) else None
        at += size + -size % 4


def _pack(name: int, value: bytes) -> bytes:
    """Return an attribute, whose value is of a multiple of 4 bytes."""
    return ATTRIBUTE.pack(name, len(value)) + value


def _mask(transaction: bytes) -> bytes:
    return struct.pack("!I", MAGIC) + transaction


def _write_address(address: HostPort, transaction: bytes) -> bytes:
    host, port = ip_address(address[0].partition("%")[0]), address[1]
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    family = next(number for number, kind in FAMILIES.items() if isinstance(host, kind))
    return PLACE.pack(family, port ^ MAGIC >> 16) + _xor(host.packed, _mask(transaction))


def _read_address(value: bytes, mask: bytes) -> HostPort | None:
    if len(value) < PLACE.size:
        return None
    family, port = PLACE.unpack_from(value)
    packed = _xor(value[PLACE.size :], mask)
    try:
        host = FAMILIES[family](packed)
    except (KeyError, ValueError):
        return None
    return str(host), port ^ int.from_bytes(mask[:2], "big")


def _xor(data: bytes, mask: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(data, mask, strict=False))
