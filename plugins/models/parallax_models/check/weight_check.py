"""Compares the parameters that an adapter counts with those in the headers of a checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parallax_core.api import ModelShape, Part, Unsupported, read_object
from parallax_core.api.deployment import ModelFamily, count_weights, find_part
from parallax_core.api.source import INDEX, TensorLocation, find_locations, read_index

PREDICTION = "multi-token prediction"
OTHER = "images, sound or other uses than text"
MTP = re.compile(r"(?:^|\.)(?:mtp|nextn|mtp_\w+)\.")
"""Names of tensors of multi-token prediction that are not in a numbered layer behind those of the model."""
FLOATS = re.compile(r"B?F\d+(_\w+)?")
MOST_PER_BYTE, FEWEST_PER_BYTE = 4.0, 0.22
"""The most parameters in a byte, at 2 bits, and the fewest, in float32 with a tenth for what is not counted."""
SLACK, PACKED_SLACK = 0.02, 0.15
"""The share by which a count may differ: for small buffers in a layer, and for the scales of packed weights."""
HINT = "the adapter is wrong, or config.json is not that of these weights: docs/how-to/check-a-model.md"


@dataclass(slots=True)
class PartCount:
    """The tensors of one part of a checkpoint."""

    tensors: int = 0
    num_bytes: int = 0
    """Of those with a header."""
    least: int = 0
    """The fewest parameters that they can hold."""
    most: int = 0
    """The most; the same unless they are packed in integers."""
    without_header: int = 0
    """The number of tensors that only the index names."""
    has_experts: bool = False

    def add(self, name: str, location: TensorLocation | None) -> None:
        """Count one tensor; ``location`` is None if its header is not here."""
        self.tensors += 1
        self.has_experts |= ".experts." in name or ".switch_mlp." in name
        if location is None:
            self.without_header += 1
            return
        numbers, size = math.prod(location.shape), len(location)
        is_plain = FLOATS.fullmatch(location.kind) is not None and not location.kind.startswith("F4")
        self.num_bytes += size
        self.least += numbers if is_plain else size
        self.most += numbers if is_plain else int(size * MOST_PER_BYTE)


Counts = Mapping[Part | str, PartCount]


def count_parts(family: ModelFamily, shape: ModelShape, folder: Path) -> Counts:
    """Return the tensors of each layer and end of a model; those that no layer uses are `PREDICTION` or `OTHER`."""
    located = {each.name: each for path in folder.glob("*.safetensors") for each in find_locations(path)}
    counts: dict[Part | str, PartCount] = {}
    for name in {**dict.fromkeys(read_index(folder)), **located}:
        part: Part | str | None = find_part(family.adapter, name)
        if isinstance(part, int) and part >= len(shape.layers):
            part = PREDICTION
        elif part is None:
            part = PREDICTION if MTP.search(name) else OTHER
        counts.setdefault(part, PartCount()).add(name, located.get(name))
    return counts


def check_weights(family: ModelFamily, shape: ModelShape, folder: Path) -> Counts:
    """Compare every layer of ``shape`` with the checkpoint in ``folder``, as far as its index and headers are there.

    Returns:
        The tensors of each part; empty if there is neither an index nor a header.

    Raises:
        Unsupported: if a layer has other parameters than the adapter counts; it names the layer and both numbers.
    """
    counts = count_parts(family, shape, folder)
    slices = counts.get("every", PartCount()).most
    for number, layer in enumerate(shape.layers):
        count = counts.get(number, PartCount())
        if counts and not count.tensors:
            raise Unsupported(f"the checkpoint has no tensor of layer {number}, of {len(shape.layers)} layers", HINT)
        is_exact = count.least == count.most and layer.source is None  # files may have keys that such a layer leaves
        slack = SLACK if is_exact else PACKED_SLACK
        fits = count.least * (1 - slack) <= layer.weights <= count.most * (1 + slack) + slices
        if not count.without_header and count.tensors and not fits:
            stored = f"{count.least:,}" if count.least == count.most else f"{count.least:,} to {count.most:,}"
            counted = f"the adapter {family.name!r} counts {layer.weights:,} parameters in layer {number}"
            raise Unsupported(f"{counted}, where the checkpoint has {stored}{_blame(layer.num_experts, count)}", HINT)
    _check_total(family, shape, folder, counts)
    return counts


def _check_total(family: ModelFamily, shape: ModelShape, folder: Path, counts: Counts) -> None:
    """Compare the bytes in the index with the parameters of all layers, since most headers may not be here."""
    size, numbers, last = read_total(folder), count_weights(shape), len(shape.layers) - 1
    further = counts.get(PREDICTION, PartCount()).tensors / max(counts.get(last, PartCount()).tensors, 1)
    most = numbers + further * shape.layers[last].weights
    if not size or (FEWEST_PER_BYTE * size <= most and numbers <= MOST_PER_BYTE * size) or OTHER in counts:
        return
    reason = _blame(shape.layers[last].num_experts, counts.get(last, PartCount()))
    message = f"the adapter {family.name!r} counts {numbers:,} parameters, where the checkpoint has {size:,} bytes"
    raise Unsupported(f"{message}{reason}", HINT)


def read_total(folder: Path) -> int:
    """Return the bytes of all weights as the index states them; 0: it does not."""
    index = folder / INDEX
    metadata = read_object(index).get("metadata") if index.is_file() else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def _blame(num_experts: int, count: PartCount) -> str:
    return ": it counts no experts, and the layer has some" if count.has_experts and not num_experts else ""
