"""Chooses the tensors of a model to quantise, by the headers of its files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parallax_core.api import ParallaxError, Part, Unsupported, read_config
from parallax_core.api.source import TensorLocation, find_locations, find_missing
from parallax_formats import name_method
from parallax_quantize.experts import ExpertTensor, find_experts
from parallax_quantize.grids import FloatGrid, Grid
from parallax_quantize.targets import Target

MATRIX = re.compile(r"(proj(_\w+)?|w[123]|fc[12]|dense)\.weight$")
"""Matches the ends of the names of matrices in layers; routers, norms and convolutions have others."""
ENDS = re.compile(r"(embed_tokens|lm_head)\.weight$")
SENSITIVE = re.compile(r"\.(self_attn\.v_proj|mlp\.down_proj)\.weight$")
"""Matches the matrices that have more bits in a mix, as in files of llama.cpp and by the recipes of mlx-lm."""
PLAIN_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
BYTE_BITS = 8

FindPart = Callable[[str], Part | None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The tensors of a model, and the grids of those that are quantised."""

    tensors: dict[str, TensorLocation]
    grids: dict[str, Grid]
    """By name."""
    parts: dict[Part | None, list[str]]
    """The names of the tensors of each part, in the order in which they are written; without those of experts."""
    experts: dict[Part | None, list[ExpertTensor]]
    """The matrices and biases of experts, by part."""
    num_bytes: int
    """What will be written."""

    def list_modules(self) -> dict[str, Grid]:
        """Return the grids of quantised matrices by module."""
        return {name.removesuffix(".weight"): grid for name, grid in self.grids.items()}

    def list_plain(self) -> list[str]:
        """Return the modules of matrices that stay as they are."""
        matrices = [name for name, each in self.tensors.items() if len(each.shape) == 2 and name.endswith(".weight")]  # noqa: PLR2004
        return [name.removesuffix(".weight") for name in matrices if name not in self.grids]


def choose(folder: Path, target: Target, find_part: FindPart) -> Choice:
    """Return what becomes of each tensor of a model.

    Raises:
        Unsupported: if the model is quantised already, has experts that are not known, or nothing to quantise.
        ParallaxError: if a part of the model is not here.
    """
    config = read_config(folder)
    if method := name_method(config):
        raise Unsupported(f"{folder.name} is quantised already: {method}", "quantise the model in full precision")
    if find_missing(folder):
        raise ParallaxError(f"a part of {folder.name} is not on this machine", "fetch it with `parallax models pull`")
    tensors = {each.name: each for path in sorted(folder.glob("*.safetensors")) for each in find_locations(path)}
    parts: dict[Part | None, list[str]] = {}
    experts: dict[Part | None, list[ExpertTensor]] = {}
    for each in find_experts(str(config.get("model_type")), tensors):
        experts.setdefault(find_part(each.names[0]), []).append(each)
        if not each.is_bias and each.shape[-1] % target.layers.group:
            message = f"the experts of {each.module} have {each.shape[-1]} inputs, no groups of {target.layers.group}"
            raise Unsupported(message, "try --group")
    of_experts = {name for found in experts.values() for each in found for name in each.names}
    for name in sorted(tensors.keys() - of_experts, key=_sort_naturally):
        parts.setdefault(find_part(name), []).append(name)
    grids = {name: grid for part, names in parts.items() for name, grid in _choose_grids(tensors, part, names, target)}
    if not grids and not experts:
        raise Unsupported(
            f"{folder.name} has no matrix whose inputs are groups of {target.layers.group}", "try --group"
        )
    sizes = (
        _count_bytes(each, target.layers if name in of_experts and len(each.shape) > 1 else grids.get(name))
        for name, each in tensors.items()
    )
    return Choice(tensors, grids, parts, experts, sum(sizes))


def _choose_grids(
    tensors: dict[str, TensorLocation], part: Part | None, names: list[str], target: Target
) -> Iterator[tuple[str, Grid]]:
    for name in names:
        shape = tensors[name].shape
        is_layer = isinstance(part, int) and MATRIX.search(name) is not None
        own = target.fine if target.fine and SENSITIVE.search(name) else target.layers
        grid = own if is_layer else target.ends if part in ("before", "after") and ENDS.search(name) else None
        is_float = tensors[name].kind in PLAIN_BYTES
        if grid is not None and is_float and len(shape) == 2 and shape[1] % grid.group == 0:  # noqa: PLR2004
            yield name, grid


def _count_bytes(location: TensorLocation, grid: Grid | None) -> int:
    if grid is None:
        return len(location)
    numbers = math.prod(location.shape)
    scales = numbers // grid.group * (1 if isinstance(grid, FloatGrid) else 4)
    return numbers * grid.bits // BYTE_BITS + scales


def _sort_naturally(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in name.split(".")]
