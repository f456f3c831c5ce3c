"""Quantises a model, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from parallax_core.api import ParallaxError, Part, Progress, read_config, read_tensors, silent
from parallax_quantize.calibration import LayerRunner
from parallax_quantize.choice import Choice
from parallax_quantize.experts import WORDS
from parallax_quantize.folder import FolderWriter
from parallax_quantize.grids import FEW_BITS, AffineGrid, Grid
from parallax_quantize.rounding import Rounded, restore, round_by_inputs, round_plain
from parallax_quantize.targets import Target
from parallax_sampling_torch.tensors import read_tensor


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Quantises the model of a folder.

    Args:
        folder: the model.
        target: what it becomes.
        choice: of its tensors.
        runner: shows what matrices are given; None: each weight is rounded by itself.
    """

    folder: Path
    target: Target
    choice: Choice
    runner: LayerRunner | None = None

    def write(self, writer: FolderWriter, progress: Progress) -> None:
        """Write the model, the layers in order."""
        numbers = sorted(part for part in self.choice.parts if isinstance(part, int))
        order: list[Part | None] = ["before", "every", *numbers, "after", None]
        done, total = 0, sum(map(len, self.choice.parts.values())) + sum(map(len, self.choice.experts.values()))
        progress("quantise", done, total, "items")
        for part in order:
            for name, tensor in self._make_part(part):
                writer.add(name, tensor)
            for name, tensor in self._make_experts(part):
                writer.add(name, tensor)
            done += len(self.choice.parts.get(part, ())) + len(self.choice.experts.get(part, ()))
            progress("quantise", done, total, "items")
        described = self.target.describe(self.choice.list_modules(), self.choice.list_plain())
        writer.close(self.folder, {**read_config(self.folder), **described})

    def _make_part(self, part: Part | None) -> Iterator[tuple[str, torch.Tensor]]:
        names = frozenset(self.choice.parts.get(part, ()))
        found = {name: read_tensor(each) for name, each in read_tensors(self.folder, names.__contains__, silent)}
        rounded = self._calibrate(part, found) if self.runner and isinstance(part, int) else {}
        for name, tensor in found.items():
            grid = self.choice.grids.get(name)
            if grid is None:
                yield name, tensor.clone()
                continue
            made = rounded.get(name) or round_plain(tensor, find_zeros(grid))
            stem = name.removesuffix("weight")
            for word, each in self.target.pack(made, grid, tensor.dtype).items():
                yield stem + word, each

    def _make_experts(self, part: Part | None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of experts, each rounded by itself: a text may give some of them nothing."""
        grid = self.target.layers
        for each in self.choice.experts.get(part, ()):
            found = {
                name: read_tensor(tensor) for name, tensor in read_tensors(self.folder, each.names.__contains__, silent)
            }
            whole = each.make(found)
            if each.is_bias:
                yield from self.target.name_bias(each, whole)
                continue
            for stem, matrices in self.target.divide(each, whole):
                rounded = round_plain(matrices.flatten(0, -2), find_zeros(grid))
                is_stack = matrices.shape == whole.shape
                for word, packed in self.target.pack(rounded, grid, whole.dtype).items():
                    yield f"{stem}.{word}", packed.unflatten(0, matrices.shape[:-1]) if is_stack else packed

    def _calibrate(self, layer: int, found: Mapping[str, torch.Tensor]) -> dict[str, Rounded]:
        rounded: dict[str, Rounded] = {}

        def round_matrix(module: str, products: torch.Tensor) -> torch.Tensor:
            name = next((each for each in found if each.endswith(f"{module}.weight")), None)
            if name is None:  # of an expert
                return torch.zeros(self._count_outputs(layer, module), len(products))
            grid, weight = self.choice.grids.get(name), found[name]
            if grid is None:
                return torch.zeros(weight.shape)
            if not products.isfinite().all():
                raise ParallaxError(f"the inputs of {name} are not finite", "quantise without --calibrate")
            rounded[name] = round_by_inputs(weight, products, grid)
            return restore(rounded[name], grid) - weight.float()

        assert self.runner is not None
        self.runner.run(layer, round_matrix)
        return rounded

    def _count_outputs(self, layer: int, module: str) -> int:
        """Return the outputs of a matrix of an expert."""
        word = module.rpartition(".")[2]
        word = WORDS.get(word, word.partition("_")[0])
        return next(each.shape[1] for each in self.choice.experts[layer] if each.word == word)


def find_zeros(grid: Grid) -> Grid:
    """Return a grid whose zeros HQQ finds: of few bits, and where they need not be integers."""
    if not isinstance(grid, AffineGrid) or grid.has_integer_zero or grid.bits > FEW_BITS:
        return grid
    return replace(grid, finds_zero=True)
