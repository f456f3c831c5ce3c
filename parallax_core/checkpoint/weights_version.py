"""Which weights a stage holds, named by their content, so that stages of different weights are not mixed.

A fine-tuned model has the configuration and the headers of the one it was made from, and two machines may hold
different revisions of one name. So every part of a model has a digest of its own: each layer, and each tensor that
belongs to none. Whoever holds the same part must have the same digest. Nodes that have fetched different layers have no
part in common; they still have what their source lists of all files, with which they state what the rest would be.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parallax_core.checkpoint.digest import DIGITS
from parallax_core.checkpoint.digest_cache import read_digests
from parallax_core.checkpoint.reader import find_missing
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.stage import LayerRange

LAYER = re.compile(r"((?:.*?\.)?[0-9]{1,9})\..*")
"""The name of a tensor of a layer: the layer with its number, such as ``model.layers.3``, and what comes after it."""
NUMBERED = re.compile(r"(?:.*\.)?([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """What names the weights of a stage; see `StageInfo` for what the fields mean."""

    version: str
    parts: Mapping[str, str]


def identify_weights(plan: StagePlan, layers: LayerRange, num_layers: int) -> WeightsIdentity:
    """Return what names the weights that a stage of ``layers`` is made of, for its `StageInfo`.

    The first and the last stage hold tensors that belong to no layer; those are then named too. So are the files that
    the source of the model lists, which tell its revisions apart.

    Args:
        plan: what the backend was asked to load.
        layers: of the stage.
        num_layers: of the whole model.

    Raises:
        ParallaxError: if a file is damaged.
        OSError: if one cannot be read.
    """
    is_end = layers.start == 0 or layers.stop == num_layers
    found = {
        part: digest
        for part, digest in digest_parts(plan.model).items()
        if (is_end if (number := find_layer(part)) is None else layers.start <= number < layers.stop)
    }
    version = _join(f"{part} {digest}" for part, digest in found.items())
    return WeightsIdentity(version, {**found, **plan.listed_weights})


def state_weights(plan: StagePlan) -> dict[str, str]:
    """Return what can be stated of a whole model: the parts that are here, and what its source lists of all of it.

    Raises:
        ParallaxError: if a file is damaged.
        OSError: if one cannot be read.
    """
    return {**digest_parts(plan.model), **plan.listed_weights}


def digest_parts(folder: Path) -> dict[str, str]:
    """Return a digest of each part of a model that is wholly on this machine.

    A part is a layer, as ``model.layers.3``, or a tensor that belongs to none, by its name.

    Raises:
        ParallaxError: if a file is damaged.
        OSError: if one cannot be read.
    """
    tensors: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_digests(path)
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for name, digest in tensors.items():
        parts[name_part(name)].append(f"{name} {digest}")
    broken = set(map(name_part, find_missing(folder)))
    return {part: _join(digests) for part, digests in sorted(parts.items()) if part not in broken}


def name_part(tensor: str) -> str:
    """Return the part of a model that a tensor belongs to."""
    found = LAYER.fullmatch(tensor)
    return found[1] if found else tensor


def find_layer(part: str) -> int | None:
    """Return the number of the layer that a part is; None if it is none."""
    found = NUMBERED.fullmatch(part)
    return int(found[1]) if found else None


def _join(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:DIGITS]
