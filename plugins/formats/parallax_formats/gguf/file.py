"""Reads GGUF files: their keys and values, and the position of each tensor, also of split models.

The format is specified in ggml's ``docs/gguf.md``. The reader of the gguf package is not used, because it trusts the
lengths in a file: a damaged file can keep it busy without end.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
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
MOST_TENSORS = 50_000
"""The most tensors of a file; DeepSeek-V3 has about a thousand."""
MOST_VALUES = 8_000_000
"""The most numbers and strings in a header. The largest vocabularies have 300,000 tokens, and twice as many merges."""
MOST_HEADER_BYTES = 1 << 28
MOST_FILES = 1_000
LEAST_BYTES = 13
"""The bytes of the shortest key with its value."""
NAME = re.compile(r"(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+", re.ASCII)
"""Matches the name of a tensor: words between single dots, and no path."""
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
"""Matches the name of one of several files of a model."""


def damaged(detail: str) -> ParallaxError:
    """Return the error for a damaged GGUF file."""
    return ParallaxError(f"the GGUF file is damaged: {detail}", "download it again, or tell its publisher")


class HeaderNotHere(ParallaxError):
    """The header of a partially fetched file reaches beyond the bytes that are here."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a GGUF file."""

    name: str
    shape: tuple[int, ...]
    """Slowest axis first, as in numpy; GGUF itself gives the fastest first."""
    kind: GGMLQuantizationType
    start: int
    """Offset of its first byte in the file."""
    number: int = 0
    """Which of the model's files has it."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.num_rows * self.row_bytes

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
    """The files of a model, mapped into memory: bytes of a tensor are read when they are used."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    data: Sequence[memoryview]
    """The bytes of each file."""

    def read_rows(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of ``tensor``: uint8 of shape (rows, bytes per row)."""
        data = self.data[tensor.number][tensor.start : tensor.start + tensor.num_bytes]
        return np.frombuffer(data, np.uint8).reshape(tensor.num_rows, tensor.row_bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says before the values of its tensors."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Open a GGUF file, with the other files of its model, and read everything except the values of its tensors.

    Time and memory are bounded by `MOST_TENSORS`, `MOST_VALUES` and `MOST_HEADER_BYTES`.

    Args:
        path: the file; of a model in several files, any of them.

    Raises:
        ParallaxError: if a file is damaged or missing.
        Unsupported: if it is of a version, byte order or tensor type that cannot be read.
    """
    paths = list_files(path)
    headers = [read_header(each, number) for number, each in enumerate(paths)]
    if len(headers) > 1:
        check_parts(headers)
    tensors = collect_pairs(pair for header in headers for pair in header.tensors.items())
    yield GgufFile(headers[0].metadata, tensors, [map_file(each) for each in paths])


def list_files(path: Path) -> list[Path]:
    """Return the files of the model that a file belongs to, in their order.

    Raises:
        ParallaxError: if one is missing.
    """
    found = PART.fullmatch(path.name)
    if not found:
        return [path]
    stem, count = found[1], int(found[3])
    if not 1 <= int(found[2]) <= count <= MOST_FILES:
        raise damaged(f"its name says that it is file {int(found[2])} of {count}")
    paths = [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        message = f"of the {count} files of {stem}, {len(missing)} are missing, such as {missing[0]}"
        raise ParallaxError(message, "put all files of the model into one folder")
    return paths


def map_file(path: Path) -> memoryview:
    """Return the bytes of a file that is not empty, mapped into memory."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def read_header(path: Path, number: int, present: int | None = None) -> Header:
    """Read one file except for the values of its tensors.

    Args:
        path: the file.
        number: its place among the model's files, from 0.
        present: how many of its first bytes are here, if it is fetched in parts.

    Raises:
        HeaderNotHere: if the header is longer than that.
        ParallaxError: if the file is damaged.
        Unsupported: if it is of a version, byte order or tensor type that cannot be read.
    """
    with path.open("rb") as file:
        cursor = Cursor(file, path.stat().st_size, present)
        num_tensors, num_values = read_counts(cursor)
        metadata = collect_pairs(read_pair(cursor) for _ in range(num_values))
        infos = [read_tensor(cursor) for _ in range(num_tensors)]
        return Header(metadata, place_tensors(infos, read_alignment(metadata), cursor, number))


def check_parts(headers: Sequence[Header]) -> None:
    """Check that files are the parts of one model, in their order."""
    for number, header in enumerate(headers):
        told = header.metadata.get("split.no"), header.metadata.get("split.count")
        if told != (number, len(headers)):
            raise damaged(f"file {number + 1} of {len(headers)} says that it is number {told[0]} of {told[1]}, from 0")
    count, told_count = sum(len(header.tensors) for header in headers), headers[0].metadata.get("split.tensors.count")
    if told_count not in (None, count):
        raise damaged(f"its files have {count} tensors, not {told_count}")


class Cursor:
    """Reads a file from the front, and never past its end."""

    def __init__(self, file: BinaryIO, size: int, present: int | None = None) -> None:
        self.file = file
        self.size = size
        self.position = 0
        self._present = size if present is None else present
        self._num_values = 0

    def take_bytes(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            ParallaxError: if the file ends before that.
        """
        if count > self.size - self.position:
            raise damaged(f"it ends after {self.size} bytes, within its header")
        self.position += count
        if self.position > MOST_HEADER_BYTES:
            raise damaged(f"its header has more than {MOST_HEADER_BYTES} bytes")
        if self.position > self._present:
            raise HeaderNotHere(f"of the header of {self.file.name}, {self._present} bytes are here")
        return self.file.read(count)

    def count_values(self, count: int) -> None:
        """Count values of the header before they are read, and refuse too many."""
        self._num_values += count
        if self._num_values > MOST_VALUES:
            raise damaged(f"its header has more than {MOST_VALUES} values")

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
        raise Unsupported(message, "choose a newer GGUF file of this model")
    num_tensors, num_values = cursor.take_number("Q"), cursor.take_number("Q")
    least = max(num_tensors, num_values) * LEAST_BYTES
    if least > cursor.size - cursor.position:
        raise damaged(f"it ends after {cursor.size} bytes, within its header")
    if num_tensors > MOST_TENSORS:
        raise damaged(f"it has {num_tensors} tensors, and at most {MOST_TENSORS} are read")
    return num_tensors, num_values


def read_pair(cursor: Cursor) -> tuple[str, Value]:
    """Read one key and its value."""
    key, kind = cursor.take_text(), cursor.take_number("I")
    if kind != ARRAY:
        return key, read_values(cursor, key, kind, 1)[0]
    kind, count = cursor.take_number("I"), cursor.take_number("Q")
    return key, read_values(cursor, key, kind, count)


def read_values(cursor: Cursor, key: str, kind: int, count: int) -> list[Scalar]:
    """Read ``count`` values of one kind. Nested arrays exist in the format and in no language model."""
    if kind != STRING and kind not in SCALARS:
        raise damaged(f"{key!r} has the unknown type {kind}")
    if count > cursor.size - cursor.position:
        raise damaged(f"it ends after {cursor.size} bytes, within its header")
    cursor.count_values(count)
    if kind == STRING:
        return [cursor.take_text() for _ in range(count)]
    dtype = np.dtype("<" + SCALARS[kind])
    values: list[Scalar] = np.frombuffer(cursor.take_bytes(count * dtype.itemsize), dtype).tolist()
    return values


def read_tensor(cursor: Cursor) -> TensorInfo:
    """Read the description of one tensor; ``start`` is relative to the first value."""
    name, num_dims = cursor.take_text(), cursor.take_number("I")
    if not NAME.fullmatch(name):
        raise damaged(f"a tensor has the name {name[:60]!r}")
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


def place_tensors(infos: list[TensorInfo], alignment: int, cursor: Cursor, number: int) -> dict[str, TensorInfo]:
    """Return the tensors by name with ``start`` counted from the start of the file.

    Each is checked to lie within the file, and to share no byte with another.
    """
    base = -(-cursor.position // alignment) * alignment
    placed = [TensorInfo(info.name, info.shape, info.kind, base + info.start, number) for info in infos]
    for info in placed:
        check_extent(info, cursor.size)
    for one, other in pairwise(sorted(placed, key=lambda info: info.start)):
        if one.start + one.num_bytes > other.start:
            raise damaged(f"the tensors {one.name!r} and {other.name!r} overlap")
    return collect_pairs((info.name, info) for info in placed)


def check_extent(info: TensorInfo, size: int) -> None:
    """Check that a tensor has whole rows and lies within a file of ``size`` bytes."""
    if 0 in info.shape or info.shape[-1] % GGML_QUANT_SIZES[info.kind][0]:
        raise damaged(f"the tensor {info.name!r} of type {info.kind.name} has the shape {list(info.shape)}")
    if info.start + info.num_bytes > size:
        raise damaged(f"it has {size} bytes, and the tensor {info.name!r} reaches beyond them")


def collect_pairs(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return a dictionary of pairs whose names must differ."""
    collected: dict[str, T] = {}
    for name, value in pairs:
        if name in collected:
            raise damaged(f"it has {name!r} twice")
        collected[name] = value
    return collected
