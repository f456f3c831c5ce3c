"""Writes tensors as safetensors, in files of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from parallax_source_pypi.treatments import Array, Converted

KINDS = {"float16": "F16", "float32": "F32"}
"""Dtypes as safetensors names them (https://github.com/huggingface/safetensors#format)."""
ALIGNMENT = 8
"""The bytes of the length of a header, and what its end is aligned to."""
SHARD_BYTES = 1 << 30
"""The most bytes of tensors in one file, unless a single tensor has more. A file's tensors are held in memory."""


def lay_out(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file, and where each tensor begins in the file.

    Args:
        tensors: of each the name, the dtype, the shape, and the bytes of the values.
    """
    offset, starts, header = 0, dict[str, int](), dict[str, object]({"__metadata__": {"format": "pt"}})
    for name, kind, shape, size in tensors:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        starts[name], offset = offset, offset + size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    front = len(text).to_bytes(ALIGNMENT, "little") + text
    return front, {name: len(front) + start for name, start in starts.items()}


class ShardWriter:
    """Collects tensors and writes them to ``folder``, one file whenever it is full."""

    def __init__(self, folder: Path, limit: int = SHARD_BYTES) -> None:
        self.folder = folder
        self._limit = limit
        self._waiting: dict[str, tuple[str, Array]] = {}
        """By name: the dtype and the values."""
        self._waiting_bytes = 0
        self._shards: list[list[str]] = []
        self.total_bytes = 0
        self.dtype = "float16"
        """``float32`` once a tensor of that type was added."""
        self.types: dict[str, str] = {}
        """The types of the tensors that are blocks, by name."""

    def add_tensor(self, tensor: Converted) -> None:
        """Make and take one tensor, writing those before it if the file would become too large.

        Raises:
            ParallaxError: if it cannot be made; see `Converted.make`.
        """
        name, values = tensor.name, tensor.make()
        if self._waiting and self._waiting_bytes + values.nbytes > self._limit:
            self._write_shard()
        if tensor.kind:
            self.types[name] = tensor.kind
        if values.dtype == np.float32:
            self.dtype = "float32"
        self._waiting[name] = tensor.dtype or KINDS[values.dtype.name], values
        self._waiting_bytes += values.nbytes
        self.total_bytes += values.nbytes

    def close(self) -> None:
        """Write the rest, name the files and, if there are several, write the index."""
        self._write_shard()
        count = len(self._shards)
        if count == 1:
            self._path(0).rename(self.folder / "model.safetensors")
            return
        files = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        for number, file in enumerate(files):
            self._path(number).rename(self.folder / file)
        self._write_index(files)

    def _write_shard(self) -> None:
        path = self._path(len(self._shards))
        header, _ = lay_out((name, kind, values.shape, values.nbytes) for name, (kind, values) in self._waiting.items())
        with path.open("wb") as file:
            file.write(header)
            for _, values in self._waiting.values():
                file.write(np.ascontiguousarray(values).data)
        self._shards.append(list(self._waiting))
        self._waiting, self._waiting_bytes = {}, 0

    def _write_index(self, files: list[str]) -> None:
        places = {name: file for file, names in zip(files, self._shards, strict=True) for name in names}
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": places}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (self.folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    def _path(self, number: int) -> Path:
        # Names contain the number of files, which is known only at the end.
        return self.folder / f"shard-{number}.part"
