"""What a file of weights holds, tensor by tensor, named by its content.

To read all of a large model for that would take as long as loading it. So of a tensor beyond 64 KiB, 16 pieces are
taken, at places that follow from its size alone and are the same on every machine. Training changes numbers all over a
tensor, which shows in them; that a few numbers elsewhere were changed by hand does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path

from parallax_core.checkpoint.partial import read_present
from parallax_core.checkpoint.reader import TensorLocation, find_places

PIECES, PIECE_BYTES = 16, 4096
"""What is read of a large tensor: so many pieces of so many bytes, evenly spaced, with the first and the last bytes."""
DIGITS = 32
"""Hexadecimal digits of a digest."""
SCHEME = 1
"""Raised when the same tensor would get another digest."""


def digest_tensors(path: Path) -> dict[str, str]:
    """Return a digest of each tensor of a safetensors file that is on this machine: of its dtype, shape and content.

    Raises:
        ParallaxError: if the file is damaged.
        OSError: if it cannot be read.
    """
    present = read_present(path)
    with path.open("rb", buffering=0) as file:
        return {
            place.name: _digest(place, file)
            for place in find_places(path)
            if present is None or present.covers(place.start, place.stop)
        }


def _digest(place: TensorLocation, file: RawIOBase) -> str:
    digest = hashlib.sha256(f"{place.kind} {place.shape} ".encode())
    for start, size in list_pieces(len(place)):
        file.seek(place.start + start)
        digest.update(file.read(size) or b"")
    return digest.hexdigest()[:DIGITS]


def list_pieces(size: int) -> Iterator[tuple[int, int]]:
    """Yield what is read of a tensor of ``size`` bytes: the first byte of a piece, and its number of bytes."""
    if size <= PIECES * PIECE_BYTES:
        yield 0, size
        return
    for index in range(PIECES):
        yield index * (size - PIECE_BYTES) // (PIECES - 1), PIECE_BYTES
