"""Digests of the tensors in a weight file.

Reading all of a large model would take as long as loading it. So of a tensor beyond 64 KiB, only 16 pieces are read, at
offsets that depend on its size alone. Training changes numbers all over a tensor, which the pieces show; a few numbers
changed by hand elsewhere go unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path

from parallax_core.checkpoint.partial import read_present
from parallax_core.checkpoint.reader import TensorLocation, find_locations

PIECES, PIECE_BYTES = 16, 4096
"""The number of pieces read of a large tensor, and the bytes of each; evenly spaced from the first byte to the last."""
DIGITS = 32
"""The number of hexadecimal digits in a digest."""
SCHEME = 1
"""The version of the digests, raised whenever the same tensor would get another digest."""


def digest_tensors(path: Path) -> dict[str, str]:
    """Return a digest (of dtype, shape and content) of each tensor of a safetensors file that is on this machine.

    Raises:
        ParallaxError: if the file is damaged.
        OSError: if it cannot be read.
    """
    present = read_present(path)
    with path.open("rb", buffering=0) as file:
        return {
            location.name: _digest(location, file)
            for location in find_locations(path)
            if present is None or present.covers(location.start, location.stop)
        }


def _digest(location: TensorLocation, file: RawIOBase) -> str:
    digest = hashlib.sha256(f"{location.kind} {location.shape} ".encode())
    for start, size in list_pieces(len(location)):
        file.seek(location.start + start)
        digest.update(file.read(size) or b"")
    return digest.hexdigest()[:DIGITS]


def list_pieces(size: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces to read of a tensor of ``size`` bytes: the offset of each and its number of bytes."""
    if size <= PIECES * PIECE_BYTES:
        yield 0, size
        return
    for index in range(PIECES):
        yield index * (size - PIECE_BYTES) // (PIECES - 1), PIECE_BYTES
