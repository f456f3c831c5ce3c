"""Tells what a model takes when it is loaded, from the headers of its files; imports no MLX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_adapters.copies import LAYERS
from parallax_adapters.room import KeptRoom
from parallax_backend_mlx.probe import probe_machine
from parallax_core.api import LoadedSize, StagePlan, read_config
from parallax_formats import FORMATS, GGUF, name_method
from parallax_formats.sizes import FindPart, StoredWeight, keep_adapters, measure_loaded

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OWN = frozenset(["", "mlx"])
"""The methods of weights that mlx-lm reads as they are; ``mxfp4`` is no row of the table, and is read by it too."""
OTHERS = {"MLX's 4 bits": 0.5625, "MLX's 8 bits": 1.0625}
"""The bytes of a number in other forms, in groups of 64; on a GPU, where they stay as they are."""


def is_packed(config: Mapping[str, Any]) -> bool:
    """Return whether a model's weights are in a form that is unpacked when it is loaded; see `packed`."""
    method = name_method(config)
    return method not in OWN and method in {*FORMATS, GGUF}


def measure_size(plan: StagePlan, find_part: FindPart) -> LoadedSize:
    """Return what the model of ``plan`` takes, with its adapters; see `parallax_core.api.BackendSpec.size`."""
    size, room = measure_weights(plan, find_part), LAYERS.find_room()
    if not room.slots:
        return size
    taken = weigh_room(room, 4 if _is_on_cpu(plan) else DTYPE_BYTES.get(plan.dtype, 2))
    return keep_adapters(size, plan, find_part, lambda _: taken)


def weigh_room(room: KeptRoom, item_bytes: int) -> float:
    """Return the bytes that adapters take for each side of a matrix.

    Beside them are one of zeros, one that takes the place of another, and one more while that is converted.
    """
    return room.weigh(item_bytes, more=3)


def _is_on_cpu(plan: StagePlan) -> bool:
    return plan.device == "cpu" or (not plan.device and probe_machine().device == "cpu")


def measure_weights(plan: StagePlan, find_part: FindPart) -> LoadedSize:
    """Return what the weights of the model of ``plan`` take.

    On a CPU, everything is widened to one dtype, and on a GPU the forms that MLX has no products for; see `loading`.
    """
    if _is_on_cpu(plan):
        item = DTYPE_BYTES["float32" if plan.dtype == "auto" else plan.dtype]
        return measure_loaded(plan, find_part, lambda _: lambda weight: item * weight.numbers, item)
    if is_packed(read_config(plan.model)):
        item = DTYPE_BYTES["bfloat16" if plan.dtype == "auto" else plan.dtype]
        return measure_loaded(plan, find_part, lambda _: lambda weight: item * weight.numbers, item, OTHERS)
    plain = DTYPE_BYTES.get(plan.dtype, 0)

    def weigh(weight: StoredWeight) -> float:
        return plain * weight.numbers if plain and weight.dtype else float(weight.num_bytes)

    return measure_loaded(plan, find_part, lambda _: weigh, plain or 2, OTHERS)
