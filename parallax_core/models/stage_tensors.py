"""Which tensors of a checkpoint the layers of a stage are made of, as the model's adapter says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from parallax_core.base.errors import ParallaxError, Unsupported
from parallax_core.checkpoint.reader import FETCH_REST, find_missing, find_names, read_config
from parallax_core.contracts.model import ModelAdapter, Part
from parallax_core.contracts.stage import LayerRange
from parallax_core.models.adapters import find_family
from parallax_core.plugins.host import PluginHost

ENDS = {"before": "the embedding", "after": "the final norm and the head"}
"""What the parts are, in words, that are no layers."""
UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class StageTensors:
    """The tensors that some layers of a model are made of, with what the first and the last stage hold beside them."""

    adapter: ModelAdapter
    layers: LayerRange
    num_layers: int
    is_tied: bool
    """Whether the head is the embedding, which the last stage then needs as well."""

    @property
    def is_whole(self) -> bool:
        """Whether these are the tensors of the whole model."""
        return self.layers == LayerRange(0, self.num_layers)

    def wants(self, tensor: str) -> bool:
        """Return whether the tensor of this name is one of them."""
        part = find_part(self.adapter, tensor)
        is_first, is_last = self.layers.start == 0, self.layers.stop == self.num_layers
        if part == "before":
            return is_first or (is_last and self.is_tied)
        if part == "after":
            return is_last
        return part is not None and self.layers.start <= part < self.layers.stop


def choose_tensors(host: PluginHost, config: Mapping[str, Any], layers: LayerRange | None) -> StageTensors | None:
    """Return the tensors of ``layers``, or of the whole model, that ``config`` describes; None if no adapter reads it.

    Raises:
        ParallaxError: if several plugins claim its architecture, or the adapter cannot be loaded.
    """
    family = find_family(host, config)
    if family is None:
        return None
    try:
        shape = family.adapter.read_shape(config)
    except Unsupported:
        return None
    count = len(shape.layers)
    return StageTensors(family.adapter, layers or LayerRange(0, count), count, shape.is_tied)


def find_part(adapter: ModelAdapter, tensor: str) -> Part | None:
    """Return where a tensor belongs; None if no layer, and no end of the model, is made of it."""
    try:
        return adapter.find_part(tensor)
    except Unsupported:
        return None


def check_present(folder: Path, tensors: StageTensors, missing: Collection[str]) -> None:
    """Refuse to load layers that are not wholly on this machine.

    Args:
        folder: of the model.
        tensors: that are needed.
        missing: the tensors of the model that are not here.

    Raises:
        ParallaxError: naming the layers that are not here.
    """
    parts = {find_part(tensors.adapter, name) for name in missing if tensors.wants(name)}
    if parts:
        numbers = [part for part in parts if isinstance(part, int)]
        absent = [f"layers {format_layers(numbers)}"] if numbers else []
        absent += [words for part, words in ENDS.items() if part in parts]
        asked = format_layers(range(tensors.layers.start, tensors.layers.stop))
        message = f"layers {asked} of {folder} cannot be loaded: not on this machine are {' and '.join(absent)}"
        raise ParallaxError(message, FETCH_REST)


def find_whole_layers(adapter: ModelAdapter, names: Collection[str], missing: Collection[str]) -> set[int]:
    """Return the layers whose tensors are all on this machine.

    Args:
        adapter: of the model.
        names: all tensors of the model.
        missing: those that are not here.
    """
    broken = {find_part(adapter, name) for name in missing}
    return {part for name in names if isinstance(part := find_part(adapter, name), int) and part not in broken}


def describe_layers(host: PluginHost, folder: Path) -> str:
    """Return which layers of a model are wholly on this machine, in words; `UNKNOWN` where no adapter tells."""
    try:
        tensors = choose_tensors(host, read_config(folder), None)
        names, missing = find_names(folder), find_missing(folder)
    except ParallaxError:  # of a download that has only begun, or of files that are damaged
        return UNKNOWN
    if tensors is None:
        return UNKNOWN
    layers = find_whole_layers(tensors.adapter, names, missing).intersection(range(tensors.num_layers))
    return f"{format_layers(layers) or 'none'} of {tensors.num_layers}"


def format_layers(layers: Iterable[int]) -> str:
    """Return numbers of layers as half-open ranges, as ``--layers`` takes them: ``0-12,15-16``."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(layers)), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0][1]}-{run[-1][1] + 1}" for run in runs)
