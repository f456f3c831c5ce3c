"""Identifies the weights of a stage by content, so that stages of different weights do not mix.

A fine-tuned model has the config and the headers of its base model, and two machines may hold different revisions under
one name. So every part of a model has its own digest: each layer, and each tensor outside the layers. Nodes that hold
the same part must have the same digest of it. Nodes that have fetched different layers have no part in common; they
compare the digests of all files that their source lists.
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
"""Matches the name of a layer's tensor: the layer with its number, such as ``model.layers.3``, and the rest."""
NUMBERED = re.compile(r"(?:.*\.)?([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """The identity of a stage's weights; see `StageInfo` for the meaning of the fields."""

    version: str
    parts: Mapping[str, str]


def identify_weights(
    plan: StagePlan, layers: LayerRange, num_layers: int, held: Mapping[str, str] | None = None
) -> WeightsIdentity:
    """Return the identity of the weights of a stage of ``layers``, for its `StageInfo`.

    For the first and the last stage it includes the tensors outside the layers. It always includes the files that the
    model's source lists, which distinguish revisions.

    Args:
        plan: the plan of the stage.
        layers: the layers of the stage.
        num_layers: the number of layers of the whole model.
        held: `StageInfo.weights_parts` of the stage that holds the layers, for a lease of it; the files, which may have
            changed since, are then not read. None: they are read.

    Raises:
        ParallaxError: if a file is damaged.
        OSError: if a file cannot be read.
    """
    parts = digest_parts(plan.model) if held is None else _leave_out(held, plan.listed_weights)
    is_end = layers.start == 0 or layers.stop == num_layers
    found = {
        part: digest
        for part, digest in parts.items()
        if (is_end if (number := find_layer(part)) is None else layers.start <= number < layers.stop)
    }
    version = _join(f"{part} {digest}" for part, digest in found.items())
    return WeightsIdentity(version, {**found, **plan.listed_weights})


def state_weights(plan: StagePlan) -> dict[str, str]:
    """Return all known digests of a model: those of the parts on this machine, and those its source lists.

    Raises:
        ParallaxError: if a file is damaged.
        OSError: if a file cannot be read.
    """
    return {**digest_parts(plan.model), **plan.listed_weights}


def digest_parts(folder: Path) -> dict[str, str]:
    """Return a digest of each part of a model that is completely on this machine.

    A part is a layer, such as ``model.layers.3``, or a tensor outside the layers, by its name.

    Raises:
        ParallaxError: if a file is damaged.
        OSError: if a file cannot be read.
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
    """Return the part of a model to which a tensor belongs."""
    found = LAYER.fullmatch(tensor)
    return found[1] if found else tensor


def find_layer(part: str) -> int | None:
    """Return the layer number of a part; None if the part is not a layer."""
    found = NUMBERED.fullmatch(part)
    return int(found[1]) if found else None


def _leave_out(parts: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    return {part: digest for part, digest in parts.items() if part not in files}


def _join(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:DIGITS]
