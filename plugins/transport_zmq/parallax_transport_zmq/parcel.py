"""Cuts frames into messages: a head with the small parts, then chunks of the large ones.

A peer that sends for long is not silent, because large parts come in messages of `CHUNK_BYTES`, each of which counts
as a heartbeat. Small parts go into the head, since copying them costs less than a separate message. Both ends derive
the layout from the sizes alone.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

from parallax_core.api import Data, Frame, FrameLimits
from parallax_transport_zmq.message import BadMessage, Kind

CHUNK_BYTES = 4 * 2**20
SMALL_BYTES = 2**16
"""Larger parts are sent in messages of their own, without a copy; in bytes."""
MOST_SMALL_BYTES = 4 * SMALL_BYTES
"""The most bytes of parts in a head, sizes not counted."""

SEAL_BYTES = 64
"""Bytes added to a message by encryption, rounded up."""

_HEAD = struct.Struct("!1sQII")


def measure_message(limits: FrameLimits) -> int:
    """Return the bytes of the largest message on the wire."""
    return max(CHUNK_BYTES, _HEAD.size + 8 * limits.buffers + MOST_SMALL_BYTES) + SEAL_BYTES


def cut_frame(frame: Frame, taken: int) -> list[Data]:
    """Return the messages of a frame; ``taken`` is the number of the peer's frames taken so far."""
    parts = [memoryview(frame.header), *map(_flatten, frame.buffers)]
    sizes = [part.nbytes for part in parts]
    places = _choose_places(sizes)
    counts = struct.pack(f"!{len(sizes) - 1}Q", *sizes[1:])
    inside = [part for part, is_inside in zip(parts, places, strict=True) if is_inside]
    head = b"".join([_HEAD.pack(Kind.FRAME, taken, sizes[0], len(sizes) - 1), counts, *inside])
    outside = [part for part, is_inside in zip(parts, places, strict=True) if not is_inside]
    return [head, *(part[at : at + CHUNK_BYTES] for part in outside for at in range(0, part.nbytes, CHUNK_BYTES))]


class Parcel:
    """A frame that is arriving."""

    def __init__(self, head: memoryview, limits: FrameLimits) -> None:
        """Begin with its head.

        Raises:
            BadMessage: if it is no head, or the frame is beyond the limits.
        """
        if head.nbytes < _HEAD.size:
            raise BadMessage("a frame without a head")
        _, self.taken, header_bytes, count = _HEAD.unpack_from(head)
        at = _HEAD.size + 8 * count
        if count > limits.buffers or at > head.nbytes:
            raise BadMessage(f"a frame with {count} buffers, where {limits.buffers} are allowed")
        self._sizes = [header_bytes, *struct.unpack_from(f"!{count}Q", head, _HEAD.size)]
        _check_sizes(self._sizes, limits)
        self._parts: list[Data] = []
        self._open: deque[int] = deque()
        self._filled = 0
        self._unpack(head, at)

    @property
    def is_whole(self) -> bool:
        """Whether all of the frame has arrived."""
        return not self._open

    def add(self, chunk: memoryview) -> None:
        """Add the next message.

        Raises:
            BadMessage: if it has the wrong size.
        """
        index = self._open[0]
        size = self._sizes[index]
        wanted = min(CHUNK_BYTES, size - self._filled)
        if chunk.nbytes != wanted:
            raise BadMessage(f"{chunk.nbytes} bytes of a frame where {wanted} were due")
        if size <= CHUNK_BYTES:
            self._parts[index] = chunk
        else:
            self._fill(index, chunk)
        self._filled += wanted
        if self._filled == size:
            self._filled = 0
            self._open.popleft()

    def open(self) -> Frame:
        """Return the frame, once it is whole."""
        return Frame(bytes(self._parts[0]), tuple(self._parts[1:]))

    def _unpack(self, head: memoryview, at: int) -> None:
        for index, (size, is_inside) in enumerate(zip(self._sizes, _choose_places(self._sizes), strict=True)):
            self._parts.append(head[at : at + size] if is_inside else b"")
            if is_inside:
                at += size
            else:
                self._open.append(index)
        if at != head.nbytes:
            raise BadMessage(f"a head of {head.nbytes} bytes where {at} were due")

    def _fill(self, index: int, chunk: memoryview) -> None:
        if not self._filled:
            self._parts[index] = bytearray(self._sizes[index])
        whole = self._parts[index]
        assert isinstance(whole, bytearray)
        whole[self._filled : self._filled + chunk.nbytes] = chunk


def _choose_places(sizes: Sequence[int]) -> list[bool]:
    """Return for each part whether it is in the head."""
    left = MOST_SMALL_BYTES
    places = []
    for size in sizes:
        places.append(size <= min(left, SMALL_BYTES))
        left -= size if places[-1] else 0
    return places


def _check_sizes(sizes: Sequence[int], limits: FrameLimits) -> None:
    if not sizes[0]:
        raise BadMessage("a frame without a header")
    if sizes[0] > limits.header_bytes:
        raise BadMessage(f"a header of {sizes[0]} bytes, where {limits.header_bytes} are allowed")
    if (total := sum(sizes)) > limits.frame_bytes:
        raise BadMessage(f"a frame of {total} bytes, where {limits.frame_bytes} are allowed")


def _flatten(buffer: Data) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")
