"""Reads GGUF files: their keys and values, and the position of each tensor.

The format is specified in ggml's ``docs/gguf.md``. The reader of the gguf package is not used, because it trusts the
lengths in a file: a damaged file can keep it busy without end.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from parallax_core.api import ParallaxError, Unsupported

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | list[Scalar]
T = TypeVar("T")

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4


def damaged(detail: str) -> ParallaxError:
    """Return the error for a damaged GGUF file."""
    return ParallaxError(f"the GGUF file is damaged: {detail}", "download it again, or tell its publisher")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a GGUF file."""

    name: str
    shape: tuple[int, ...]
    """Slowest axis first, as in numpy; GGUF itself gives the fastest first."""
    kind: GGMLQuantizationType
    start: int
    """Offset of its first byte in the file."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, which is one index of every axis but the last."""
        block, size = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // block * size

    @property
    def num_rows(self) -> int:
        """Rows of the tensor as a matrix."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open GGUF file."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    file: BinaryIO

    def read_rows(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of ``tensor``: uint8 of shape (rows, bytes per row)."""
        self.file.seek(tensor.start)
        data = self.file.read(tensor.num_rows * tensor.row_bytes)
        return np.frombuffer(data, np.uint8).reshape(tensor.num_rows, tensor.row_bytes)


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Open a GGUF file and read everything except the values of its tensors.

    Raises:
        ParallaxError: if the file is damaged.
        Unsupported: if it is of a version, byte order or tensor type that cannot be read.
    """
    with path.open("rb") as file:
        cursor = Cursor(file, path.stat().st_size)
        num_tensors, num_values = read_counts(cursor)
        metadata = collect_pairs(read_pair(cursor) for _ in range(num_values))
        infos = [read_tensor(cursor) for _ in range(num_tensors)]
        tensors = place_tensors(infos, read_alignment(metadata), cursor)
        yield GgufFile(metadata, tensors, file)


class Cursor:
    """Reads a file from the front, and never past its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size
        self.position = 0

    def take_bytes(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            ParallaxError: if the file ends before that.
        """
        if count > self.size - self.position:
            raise damaged(f"it ends after {self.size} bytes, within its header")
        self.position += count
        return self.file.read(count)

    def take_number(self, code: str) -> int:
        """Return the next integer; ``code`` is its letter in the struct module."""
        form = struct.Struct("<" + code)
        return int(form.unpack(self.take_bytes(form.size))[0])

    def take_text(self) -> str:
        """Return the next string: a length of 64 bits, then UTF-8."""
        data = self.take_bytes(self.take_number("Q"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise damaged(f"the string {data[:40]!r} in its header is not UTF-8") from error


def read_counts(cursor: Cursor) -> tuple[int, int]:
    """Read the header of a GGUF file; return its numbers of tensors and of metadata values."""
    if cursor.take_bytes(4) != b"GGUF":
        raise damaged("it does not begin with the letters GGUF")
    version = cursor.take_number("I")
    if version not in VERSIONS:
        message = f"GGUF version {version} cannot be read, only {VERSIONS[0]} and {VERSIONS[1]}, little-endian"
        raise Unsupported(message, "choose a package with a newer GGUF file")
    return cursor.take_number("Q"), cursor.take_number("Q")


def read_pair(cursor: Cursor) -> tuple[str, Value]:
    """Read one key and its value."""
    key, kind = cursor.take_text(), cursor.take_number("I")
    if kind != ARRAY:
        return key, read_values(cursor, key, kind, 1)[0]
    kind, count = cursor.take_number("I"), cursor.take_number("Q")
    return key, read_values(cursor, key, kind, count)


def read_values(cursor: Cursor, key: str, kind: int, count: int) -> list[Scalar]:
    """Read ``count`` values of one kind. Nested arrays exist in the format and in no language model."""
    if kind == STRING:
        return [cursor.take_text() for _ in range(count)]
    if kind not in SCALARS:
        raise damaged(f"{key!r} has the unknown type {kind}")
    dtype = np.dtype("<" + SCALARS[kind])
    values: list[Scalar] = np.frombuffer(cursor.take_bytes(count * dtype.itemsize), dtype).tolist()
    return values


def read_tensor(cursor: Cursor) -> TensorInfo:
    """Read the description of one tensor; ``start`` is relative to the first value."""
    name, num_dims = cursor.take_text(), cursor.take_number("I")
    if not 1 <= num_dims <= MAX_DIMENSIONS:
        raise damaged(f"the tensor {name!r} has {num_dims} dimensions")
    dims = [cursor.take_number("Q") for _ in range(num_dims)]
    code, start = cursor.take_number("I"), cursor.take_number("Q")
    try:
        kind = GGMLQuantizationType(code)
    except ValueError as error:
        message = f"the tensor {name!r} has the unknown type {code}"
        raise Unsupported(message, "update the gguf package, or choose another quantisation of this model") from error
    return TensorInfo(name, tuple(reversed(dims)), kind, start)


def read_alignment(metadata: dict[str, Value]) -> int:
    """Return the bytes tensors are aligned to."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or value < 1 or value & (value - 1):
        raise damaged(f"'general.alignment' is {value!r}, not a power of two")
    return value


def place_tensors(infos: list[TensorInfo], alignment: int, cursor: Cursor) -> dict[str, TensorInfo]:
    """Return the tensors by name with ``start`` counted from the start of the file, each checked to lie within it."""
    base = -(-cursor.position // alignment) * alignment
    placed = [TensorInfo(info.name, info.shape, info.kind, base + info.start) for info in infos]
    for info in placed:
        check_extent(info, cursor.size)
    return collect_pairs((info.name, info) for info in placed)


def check_extent(info: TensorInfo, size: int) -> None:
    """Check that a tensor has whole rows and lies within a file of ``size`` bytes."""
    if 0 in info.shape or info.shape[-1] % GGML_QUANT_SIZES[info.kind][0]:
        raise damaged(f"the tensor {info.name!r} of type {info.kind.name} has the shape {list(info.shape)}")
    if info.start + info.num_rows * info.row_bytes > size:
        raise damaged(f"it has {size} bytes, and the tensor {info.name!r} reaches beyond them")


def collect_pairs(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return a dictionary of pairs whose names must differ."""
    collected: dict[str, T] = {}
    for name, value in pairs:
        if name in collected:
            raise damaged(f"it has {name!r} twice")
        collected[name] = value
    return collected
