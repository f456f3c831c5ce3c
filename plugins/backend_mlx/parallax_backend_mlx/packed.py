"""Unpacks weights in forms that MLX has no products for, exactly, by the library of formats.

mlx-lm's own forms, and MXFP4 of gpt-oss, are left to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_backend_mlx.memory import find_room
from parallax_backend_mlx.runtime import mx
from parallax_core.api import DType, ParallaxError, format_bytes, read_tensors, silent
from parallax_formats import ACTIVATIONS, FORMATS, Format, Matrix, group_tensors, name_method, split_name

ROWS_BYTES = 2**26
"""Bytes of rows in float32 that are unpacked at once."""

Config = Mapping[str, Any]


def choose_dtype(dtype: DType, *, unpacks: bool) -> DType:
    """Return the dtype for a plan's: on a GPU, weights that are unpacked here are bfloat16 unless another is given."""
    if dtype == "auto" and unpacks:
        return "bfloat16" if mx.default_device() == mx.Device(mx.gpu) else "float32"
    return dtype


def rename_tensors(config: Config, files: Mapping[str, str]) -> dict[str, str]:
    """Return the file of each weight, by its name once it is unpacked; ``files`` has that of each stored tensor."""
    stems: dict[str, set[str]] = {}
    for name in files:
        stem, word = split_name(name)
        stems.setdefault(stem, set()).add(word)
    found: dict[str, str] = {}
    for stem, words in stems.items():
        one = next((each for each in FORMATS.get(name_method(config), ()) if _is_made_of(words, each)), None)
        taken = {word for word in words if one is not None and word in one.list_words()}
        names = {f"{stem}.{word}" if stem else word: word for word in words - taken - ACTIVATIONS}
        found |= {name: files[name] for name in names}
        if one is not None:
            found[f"{stem}.weight"] = files[f"{stem}.{one.codes}"]
    return found


def _is_made_of(words: AbstractSet[str], form: Format) -> bool:
    return form.codes in words and form.needs <= words and (not form.needs_any or bool(form.needs_any & words))


@dataclass(frozen=True, slots=True)
class Packed:
    """The packed weights of a model."""

    folder: Path
    config: Config
    is_wanted: Callable[[str], bool]
    """Returns whether a weight of a name is read; others have the right shape, and no values."""
    dtype: mx.Dtype = field(default=mx.float32)
    """The dtype that weights are unpacked to."""

    def unpack(self, weights: Mapping[str, mx.array], holes: Collection[str] = ()) -> dict[str, mx.array]:
        """Return weights with those that are packed in place of the tensors they are made of.

        Args:
            weights: the tensors of the files that are here.
            holes: those whose bytes are missing; the weights that need them are left out.

        Raises:
            ParallaxError: if tensors of a weight do not fit each other, or there is too little memory.
            Unsupported: if a format has settings that are not read.
        """
        here = set(weights) - set(holes)
        matrices = group_tensors(self.config, dict(read_tensors(self.folder, here.__contains__, silent)))
        self._check_room(matrices)
        taken = {name for matrix in matrices.values() for name in matrix.names}
        kept = {name: array for name, array in weights.items() if name in here - taken and _is_weight(name)}
        return kept | {name: self._read(name, matrix) for name, matrix in matrices.items()}

    def _read(self, name: str, matrix: Matrix) -> mx.array:
        if not self.is_wanted(name):
            return mx.zeros(matrix.shape, self.dtype)
        step, parts = max(1, ROWS_BYTES // (4 * matrix.shape[-1])), []
        for start in range(0, matrix.num_rows, step):
            rows = mx.array(matrix.read(start, min(start + step, matrix.num_rows)))
            parts.append(rows.astype(self.dtype))
            mx.eval(parts[-1])
        return (mx.concatenate(parts) if len(parts) > 1 else parts[0]).reshape(matrix.shape)

    def _check_room(self, matrices: Mapping[str, Matrix]) -> None:
        wanted = (matrix for name, matrix in matrices.items() if self.is_wanted(name))
        needed, room = sum(math.prod(matrix.shape) for matrix in wanted) * self.dtype.size, find_room()
        if needed > room:
            message = f"the weights of {self.folder.name} need {format_bytes(needed)} of memory once they are unpacked"
            hint = "close other programs, or choose a smaller model, or --backend torch, which keeps some forms packed"
            raise ParallaxError(f"{message}, but only {format_bytes(room)} are free", hint)


def _is_weight(name: str) -> bool:
    """Return whether a tensor is no scale of activations, or of a cache."""
    return name.rpartition(".")[2] not in ACTIVATIONS
