"""Matches the tensors of a GGUF file with those that its architecture has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from parallax_formats.gguf import GgufFile, TensorInfo, damaged
from parallax_source_pypi.errors import refuse
from parallax_source_pypi.rows import Architecture, Row

Sizes = Mapping[str, int]
LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)\.(weight|bias)", re.ASCII)
END = re.compile(r"(.+)\.(weight|bias)", re.ASCII)
READ_BEFORE = frozenset(["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"])
"""Tensors that become settings."""
ANY = "*"


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is converted."""

    file: GgufFile
    architecture: Architecture
    sizes: Sizes
    """The sizes of the model, by name: ``hidden``, ``queries``, and so on."""
    keeps_blocks: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the file with what becomes of it."""

    info: TensorInfo
    row: Row
    prefix: str
    """What the names of the folder begin with, such as ``model.layers.0.``."""
    suffix: str

    def name(self, number: int = 0) -> str:
        """Return the name in the folder; ``number`` is that of an expert."""
        return f"{self.prefix}{self.row.target.format(number)}.{self.suffix}"


def match_slots(source: Source) -> list[Slot]:
    """Return the tensors of the file, each with what becomes of it.

    Raises:
        ParallaxError: if a tensor that the model needs is missing, or has another shape.
        Unsupported: if there is a tensor that the architecture does not have.
    """
    architecture, tensors = source.architecture, source.file.tensors
    slots = [match_slot(info, source) for name, info in tensors.items() if name not in READ_BEFORE]
    wanted = [f"{name}.weight" for name, row in architecture.ends.items() if row.is_required]
    for layer in range(source.sizes["layers"]):
        wanted += [f"blk.{layer}.{name}.weight" for name, row in architecture.layer.items() if row.is_required]
        if missing := next((name for name in wanted if name not in tensors), None):
            raise damaged(f"it has no tensor {missing!r}")
        wanted.clear()
    return slots


def match_slot(info: TensorInfo, source: Source) -> Slot:
    """Return what becomes of a tensor; raises as `match_slots` does."""
    rows, prefix, found = source.architecture.ends, "", END.fullmatch(info.name)
    if layer := LAYER.fullmatch(info.name):
        rows, prefix, found = source.architecture.layer, f"model.layers.{layer[1]}.", layer
    name, suffix = (found[found.lastindex - 1], found[found.lastindex]) if found and found.lastindex else ("", "")
    row = rows.get(name)
    is_bias = suffix == "bias" and row is not None and not row.treatment.startswith("bias")
    inside = not layer or int(layer[1]) < source.sizes["layers"]
    if row is None or not inside or (is_bias and name not in source.architecture.biases):
        raise refuse(f"a {source.architecture.model_type} with the tensor {info.name!r}")
    slot = Slot(info, row, prefix, suffix)
    check_shape(slot, source.sizes, row.sizes[:-1] if is_bias else row.sizes)
    return slot


def check_shape(slot: Slot, sizes: Sizes, names: tuple[str, ...]) -> None:
    """Check that a tensor has the shape that the model needs."""
    wanted = [ANY if name == ANY else sizes[name] for name in names]
    found = list(slot.info.shape)
    if len(found) != len(wanted) or any(size not in (ANY, have) for size, have in zip(wanted, found, strict=True)):
        raise damaged(f"the tensor {slot.info.name!r} has the shape {found}, not {wanted}")
