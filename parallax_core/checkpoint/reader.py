"""Reads the config and the tensors of a model folder; the safetensors format runs no code.

The format: eight bytes with the length of the header, the header in JSON, and the data of all tensors one after
the other (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_core.base.errors import ParallaxError, Unsupported
from parallax_core.base.files import read_object
from parallax_core.checkpoint.partial import read_present
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.tensor import STORED_BYTES, Tensor

DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "U8": "uint8",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""The most bytes of a header, as in the format's own library: a longer one is made to exhaust memory."""
TASK = "loading weights"
FETCH_REST = "fetch the rest with `parallax models pull`; `parallax models list` shows which layers are here"
"""The hint of an error about tensors that are not on this machine."""


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """The location of a tensor in a file."""

    name: str
    kind: str
    """Its dtype, in the notation of the format."""
    shape: tuple[int, ...]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of a model's config.json.

    Raises:
        ParallaxError: if it does not exist or is damaged.
    """
    try:
        return read_object(folder / "config.json")
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"there is no config.json in {folder}"
        raise ParallaxError(message, "name the folder of a model") from error


def read_tensors(folder: Path, is_wanted: Callable[[str], bool], progress: Progress) -> Iterator[tuple[str, Tensor]]:
    """Yield the wanted tensors with their names; no byte of the others is read.

    Their data are memory-mapped: copy them to keep them. Holes of partially fetched files are never yielded.

    Args:
        folder: a model in the standard layout.
        is_wanted: tells whether the tensor of a name is wanted.
        progress: receives the progress in bytes as tensors are yielded.

    Raises:
        ParallaxError: if there are no weights, a wanted tensor is not on this machine, or a file is damaged.
        Unsupported: if a wanted tensor has a dtype that `Tensor` does not support.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        message = f"there are no weights in {folder}"
        raise ParallaxError(message, "a model is a folder with config.json and *.safetensors")
    if missing := sorted(filter(is_wanted, find_missing(folder))):
        message = (
            f"only a part of {folder.name} is on this machine; missing tensors: {len(missing)}, such as {missing[0]}"
        )
        raise ParallaxError(message, FETCH_REST)
    locations = {path: [location for location in find_locations(path) if is_wanted(location.name)] for path in paths}
    done, total = 0, sum(len(location) for found in locations.values() for location in found)
    progress(TASK, done, total)
    for path, found in locations.items():
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for location in found:
            yield location.name, _make_tensor(location, data)
            done += len(location)
            progress(TASK, done, total)


def find_missing(folder: Path) -> frozenset[str]:
    """Return the names of a model's tensors that are not completely on this machine; usually empty.

    These are the tensors of missing files that the index names, and those in holes of partially fetched files. Complete
    files are not read.

    Raises:
        ParallaxError: if the index or the header of a partially fetched file is damaged.
    """
    paths = list(folder.glob("*.safetensors"))
    missing = {name for name, file in read_index(folder).items() if not (folder / file).exists()}
    if missing:  # unless the index is stale and the weights are in other files
        missing.difference_update(location.name for path in paths for location in find_locations(path))
    return frozenset(missing.union(*map(_find_holes, paths)))


def find_names(folder: Path) -> frozenset[str]:
    """Return the names of all tensors of a model, whether or not they are on this machine.

    Raises:
        ParallaxError: if the index or the header of a file is damaged.
    """
    headers = (find_locations(path) for path in folder.glob("*.safetensors"))
    return frozenset(read_index(folder)).union(location.name for locations in headers for location in locations)


def _find_holes(path: Path) -> Iterator[str]:
    present = read_present(path)
    if present is not None:
        yield from (
            location.name for location in find_locations(path) if not present.covers(location.start, location.stop)
        )


def read_index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor in ``model.safetensors.index.json``; empty if there is no index.

    Raises:
        ParallaxError: if it is not a valid index, or names a file outside its folder.
    """
    path = folder / INDEX
    if not path.is_file():
        return {}
    files = read_object(path).get("weight_map")
    if not isinstance(files, dict) or not _are_file_names(files.values()):
        message = f"{path} does not map tensors to safetensors files in its folder"
        raise ParallaxError(message, "fetch or copy the model again")
    return files


def _are_file_names(names: Collection[object]) -> bool:
    found = {name for name in names if isinstance(name, str)} if all(isinstance(name, str) for name in names) else {""}
    return all(name.endswith(".safetensors") and Path(name).name == name and "\\" not in name for name in found)


def find_locations(path: Path) -> list[TensorLocation]:
    """Return the locations of a file's tensors; only its header is read.

    Raises:
        ParallaxError: if it is damaged.
    """
    try:
        header, start = _read_header(path)
        return [_read_location(name, entry, start) for name, entry in header.items() if name != "__metadata__"]
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        message = f"{path} is damaged: {error}"
        raise ParallaxError(message, "fetch or copy the model again") from error


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of the data; raise ValueError if the file's length differs from the header's."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = LENGTH_BYTES + int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not LENGTH_BYTES < start <= size:
            raise ValueError(f"its header does not lie within its {size} bytes")
        if start - LENGTH_BYTES > MOST_HEADER_BYTES:
            raise ValueError(f"its header has {start - LENGTH_BYTES} bytes; at most {MOST_HEADER_BYTES} are allowed")
        header = json.loads(file.read(start - LENGTH_BYTES))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if start + max(ends, default=0) != size:
        raise ValueError(f"it has {size} bytes instead of {start + max(ends, default=0)}")
    return header, start


def _read_location(name: str, entry: Mapping[str, Any], start: int) -> TensorLocation:
    """Return the location of a tensor; raise ValueError if its number of bytes does not match its shape."""
    kind, shape = entry["dtype"], tuple(map(int, entry["shape"]))
    first, last = map(int, entry["data_offsets"])
    size = math.prod(shape) * STORED_BYTES[DTYPES[kind]] if kind in DTYPES else last - first
    if first < 0 or size < 0 or last - first != size:
        raise ValueError(f"{name} of shape {shape} is not {last - first} bytes of {kind}")
    return TensorLocation(name, kind, shape, start + first, start + last)


def _make_tensor(location: TensorLocation, data: memoryview) -> Tensor:
    if location.kind not in DTYPES:
        message = f"the tensor {location.name} has the dtype {location.kind}; supported are {', '.join(DTYPES)}"
        raise Unsupported(message, "choose a model that is not quantized, or another backend")
    return Tensor(DTYPES[location.kind], location.shape, data[location.start : location.stop])
