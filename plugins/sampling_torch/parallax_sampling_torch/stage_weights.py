"""Chooses the tensors that a stage of another engine reads, and reads them with core's reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from parallax_core.api import LayerRange, Progress, read_tensors
from parallax_sampling_torch.tensors import read_tensor

LAYER = re.compile(r"\b(?:layers|h|blocks)\.(\d+)\.")
"""Matches the part of a tensor's name that has the number of its layer."""


@dataclass(frozen=True, slots=True)
class StageWeights:
    """The tensors of a stage, in the files of its model."""

    model: Path
    """The folder of the model."""
    progress: Progress
    layers: LayerRange
    num_layers: int
    """The number of layers of the model."""
    missing: frozenset[str] = frozenset()
    """The tensors that are not on this machine."""
    read: list[torch.Tensor] = field(default_factory=list)
    """The tensors that were read, over the memory of their files."""

    def includes(self, name: str) -> bool:
        """Return whether the stage reads the tensor of this name.

        Tensors outside the layers, such as embeddings and the head, belong to the first and the last stage. The model
        decides which of the two needs one, so a missing one is left to the engine: it must check that all it needs was
        read.
        """
        if found := LAYER.search(name):
            return self.layers.start <= int(found[1]) < self.layers.stop
        is_end = self.layers.start == 0 or self.layers.stop == self.num_layers
        return is_end and (len(self.layers) == self.num_layers or name not in self.missing)

    def load(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors with their names, over the memory of their files.

        Raises:
            ParallaxError: if a file is damaged or missing.
            Unsupported: if a tensor has a dtype that core does not read, such as float8.
        """
        for name, tensor in read_tensors(self.model, self.includes, self.progress):
            self.read.append(read_tensor(tensor))
            yield name, self.read[-1]

    def count_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes in memory of the tensors that were read, whose floats are converted to ``dtype``."""
        return sum(each.numel() * (dtype if each.is_floating_point() else each.dtype).itemsize for each in self.read)
