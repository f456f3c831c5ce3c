"""Writes tensors as safetensors, in files of limited size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from parallax_source_pypi.weights import Floats

Values = Floats | npt.NDArray[np.uint8]
SHARD_BYTES = 1 << 30
"""The most bytes of tensors in one file, unless a single tensor has more. A file's tensors are held in memory."""


class ShardWriter:
    """Collects tensors and writes them to ``folder``, one file whenever it is full."""

    def __init__(self, folder: Path, limit: int = SHARD_BYTES) -> None:
        self.folder = folder
        self._limit = limit
        self._waiting: dict[str, Values] = {}
        self._waiting_bytes = 0
        self._shards: list[list[str]] = []
        self.total_bytes = 0
        self.dtype = "float16"
        """``float32`` once a tensor of that type was added."""

    def add_tensor(self, name: str, values: Values) -> None:
        """Take one tensor, writing those before it if the file would become too large."""
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
        path.touch()
        mode = path.stat().st_mode
        save_file(self._waiting, path, metadata={"format": "pt"})
        # safetensors makes files that only their owner may read; these follow the umask, as other files do.
        path.chmod(mode)
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
