"""Reads messages in the wire format of Protocol Buffers, without their schema."""

from __future__ import annotations

from collections.abc import Iterator

MOST_VARINT_BYTES = 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields."""
SIZES = {FIXED64: 8, FIXED32: 4}

Field = tuple[int, int | bytes]
"""The number of a field, and its value: an integer, or bytes."""


def read_fields(data: bytes) -> Iterator[Field]:
    """Return the fields of a message in their order.

    Raises:
        ValueError: if it is damaged.
    """
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, place = _read_varint(data, place)
            yield number, value
            continue
        if kind == BYTES:
            size, place = _read_varint(data, place)
        elif kind in SIZES:
            size = SIZES[kind]
        else:
            raise ValueError(f"a field of the unknown kind {kind} at byte {place}")
        if size > len(data) - place:
            raise ValueError(f"it ends within a field, at byte {len(data)}")
        yield number, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the integer at ``place``, and the place after it."""
    value = 0
    for index, byte in enumerate(data[place : place + MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004 -- the bit that says that more follows
            return value, place + index + 1
    raise ValueError(f"an integer without an end at byte {place}")
