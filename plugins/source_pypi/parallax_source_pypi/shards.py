"""Writes tensors as safetensors, in files of limited size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from parallax_source_pypi.treatments import Array

BFLOAT16 = "BF16"
KINDS = {"float16": "F16", "float32": "F32", "uint8": "U8"}
"""The dtypes of safetensors (https://github.com/huggingface/safetensors#format)."""
ALIGNMENT = 8
"""The bytes of the length of a header, and what its end is aligned to."""
SHARD_BYTES = 1 << 30
"""The most bytes of tensors in one file, unless a single tensor has more. A file's tensors are held in memory."""


class ShardWriter:
    """Collects tensors and writes them to ``folder``, one file whenever it is full."""

    def __init__(self, folder: Path, limit: int = SHARD_BYTES) -> None:
        self.folder = folder
        self._limit = limit
        self._waiting: dict[str, Array] = {}
        self._waiting_bytes = 0
        self._shards: list[list[str]] = []
        self.total_bytes = 0
        self.dtype = "float16"
        """``float32`` once a tensor of that type was added."""
        self.types: dict[str, str] = {}
        """The types of the tensors that are blocks, by name."""
        self._halves: set[str] = set()

    def add_tensor(self, name: str, values: Array, kind: str = "") -> None:
        """Take one tensor, writing those before it if the file would become too large.

        Args:
            name: its name.
            values: its values; of bfloat16 as integers.
            kind: the type of its blocks if they are of a GGUF file, or ``BF16``; empty: as the dtype says.
        """
        if kind == BFLOAT16:
            self._halves.add(name)
        elif kind:
            self.types[name] = kind
        if self._waiting and self._waiting_bytes + values.nbytes > self._limit:
            self._write_shard()
        if values.dtype == np.float32:
            self.dtype = "float32"
        self._waiting[name] = values
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
        offset, header = 0, dict[str, object]({"__metadata__": {"format": "pt"}})
        for name, values in self._waiting.items():
            kind = BFLOAT16 if name in self._halves else KINDS[values.dtype.name]
            places = [offset, offset := offset + values.nbytes]
            header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": places}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(ALIGNMENT, "little") + text)
            for values in self._waiting.values():
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
