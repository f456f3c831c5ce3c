"""Tells what a model takes when it is loaded, from the headers of its files; imports no MLX."""

from __future__ import annotations

from parallax_backend_mlx.probe import probe_machine
from parallax_core.api import LoadedSize, StagePlan
from parallax_formats.sizes import FindPart, StoredWeight, measure_loaded

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OTHERS = {"MLX's 4 bits": 0.5625, "MLX's 8 bits": 1.0625}
"""The bytes of a number in other forms, in groups of 64; on a GPU, where they stay as they are."""


def measure_size(plan: StagePlan, find_part: FindPart) -> LoadedSize:
    """Return what the model of ``plan`` takes; see `parallax_core.api.BackendSpec.size`.

    On a CPU, everything is widened to one dtype; see `loading`.
    """
    if plan.device == "cpu" or (not plan.device and probe_machine().device == "cpu"):
        item = DTYPE_BYTES["float32" if plan.dtype == "auto" else plan.dtype]
        return measure_loaded(plan, find_part, lambda _: lambda weight: item * weight.numbers, item)
    plain = DTYPE_BYTES.get(plan.dtype, 0)

    def weigh(weight: StoredWeight) -> float:
        return plain * weight.numbers if plain and weight.dtype else float(weight.num_bytes)

    return measure_loaded(plan, find_part, lambda _: weigh, plain or 2, OTHERS)
