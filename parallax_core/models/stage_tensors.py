"""Chooses the tensors of a checkpoint that the layers of a stage need, with the model's adapter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from parallax_core.base.errors import ParallaxError, Unsupported
from parallax_core.checkpoint.reader import FETCH_REST, find_missing, find_names, read_config
from parallax_core.contracts.model import ModelAdapter, ModelShape, Part
from parallax_core.contracts.stage import LayerRange
from parallax_core.models.adapters import find_family, find_shape
from parallax_core.plugins.host import PluginHost

ENDS = {"before": "the embedding", "after": "the final norm and the head", "every": "what all layers share"}
"""Descriptions of the parts other than layers."""
UNKNOWN = "not known"
"""The description of the layers of a model that no adapter knows."""


@dataclass(frozen=True, slots=True)
class StageTensors:
    """The tensors of some layers of a model, with those of the embedding and the head on the first and last stage."""

    adapter: ModelAdapter
    layers: LayerRange
    shape: ModelShape

    @property
    def num_layers(self) -> int:
        """The number of layers of the model."""
        return len(self.shape.layers)

    @property
    def is_whole(self) -> bool:
        """Whether these are the tensors of the whole model."""
        return self.layers == LayerRange(0, self.num_layers)

    def wants(self, tensor: str) -> bool:
        """Return whether the layers need the tensor of this name."""
        part = find_part(self.adapter, tensor)
        is_first, is_last = self.layers.start == 0, self.layers.stop == self.num_layers
        if part == "before":
            return is_first or (is_last and self.shape.is_tied) or self._looks_up
        if part == "every":
            return True
        if part == "after":
            return is_last
        return part is not None and self.layers.start <= part < self.layers.stop

    @property
    def _looks_up(self) -> bool:
        """Whether one of the layers looks up rows of the embedding."""
        layers = self.shape.layers[self.layers.start : self.layers.stop]
        return any(layer.tokens.has_embedding for layer in layers if layer.tokens)


def choose_tensors(host: PluginHost, config: Mapping[str, Any], layers: LayerRange | None) -> StageTensors | None:
    """Return the tensors of ``layers`` (None: all) of the model of ``config``; None if no adapter knows the model.

    Raises:
        ParallaxError: if several plugins claim its architecture, or the adapter cannot be loaded.
    """
    family, shape = find_family(host, config), find_shape(host, config)
    return StageTensors(family.adapter, layers or LayerRange(0, len(shape.layers)), shape) if family and shape else None


def find_part(adapter: ModelAdapter, tensor: str) -> Part | None:
    """Return the part of the model that a tensor belongs to; None if no part needs it."""
    try:
        return adapter.find_part(tensor)
    except Unsupported:
        return None


def check_present(folder: Path, tensors: StageTensors, missing: Collection[str]) -> None:
    """Check that all tensors a stage needs are on this machine.

    Args:
        folder: of the model.
        tensors: the tensors needed.
        missing: the model's tensors that are not on this machine.

    Raises:
        ParallaxError: if some are missing; it names their layers.
    """
    parts = {find_part(tensors.adapter, name) for name in missing if tensors.wants(name)}
    if parts:
        numbers = [part for part in parts if isinstance(part, int)]
        absent = [f"layers {format_layers(numbers)}"] if numbers else []
        absent += [name for part, name in ENDS.items() if part in parts]
        wanted = format_layers(range(tensors.layers.start, tensors.layers.stop))
        message = f"layers {wanted} of {folder} cannot be loaded: not on this machine are {' and '.join(absent)}"
        raise ParallaxError(message, FETCH_REST)


def find_whole_layers(adapter: ModelAdapter, names: Collection[str], missing: Collection[str]) -> set[int]:
    """Return the layers whose tensors are all on this machine.

    Args:
        adapter: of the model.
        names: all tensors of the model.
        missing: the tensors that are not on this machine.
    """
    broken = {find_part(adapter, name) for name in missing}
    return {part for name in names if isinstance(part := find_part(adapter, name), int) and part not in broken}


def find_stored_layers(host: PluginHost, folder: Path) -> LayerRange | None:
    """Return the longest run of layers of a model that are complete on this machine; None if none is, or if unknown."""
    try:
        tensors = choose_tensors(host, read_config(folder), None)
        names, missing = find_names(folder), find_missing(folder)
    except ParallaxError:  # the download has only begun, or files are damaged
        return None
    whole = sorted(find_whole_layers(tensors.adapter, names, missing)) if tensors else []
    runs = [list(run) for _, run in groupby(enumerate(whole), key=lambda pair: pair[1] - pair[0])]
    longest = max(runs, key=len, default=[])
    return LayerRange(longest[0][1], longest[-1][1] + 1) if longest else None


def describe_layers(host: PluginHost, folder: Path) -> str:
    """Return a text with the layers of a model that are complete on this machine; `UNKNOWN` without an adapter."""
    try:
        tensors = choose_tensors(host, read_config(folder), None)
        names, missing = find_names(folder), find_missing(folder)
    except ParallaxError:  # the download has only begun, or files are damaged
        return UNKNOWN
    if tensors is None:
        return UNKNOWN
    layers = find_whole_layers(tensors.adapter, names, missing).intersection(range(tensors.num_layers))
    return f"{format_layers(layers) or 'none'} of {tensors.num_layers}"


def format_layers(layers: Iterable[int]) -> str:
    """Return layer numbers as half-open ranges, as ``--layers`` takes them: ``0-12,15-16``."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(layers)), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0][1]}-{run[-1][1] + 1}" for run in runs)
