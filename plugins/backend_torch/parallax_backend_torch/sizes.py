"""Tells what a model takes when it is loaded, from its headers; imports torch for GGUF files alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from parallax_adapters.copies import LAYERS
from parallax_backend_torch.probe import probe_machine
from parallax_backend_torch.settings import TorchSettings
from parallax_core.api import LoadedSize, StagePlan
from parallax_formats.sizes import FindPart, StoredWeight, Weigh, find_stored, keep_adapters, measure_loaded

if TYPE_CHECKING:
    from parallax_backend_torch.kernels.rows import WeightKind

KIND_BYTES: dict[WeightKind, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "int8": 1.0625,
    "int8_low": 1.125,
    "int4": 0.625,
}
"""The bytes of a number in a matrix on a CPU, with its share of scales and offsets."""
ATTENTION = re.compile(r"\b(self_attn|linear_attn)\.")
"""Matches the names of the part of a layer that combines tokens; see `LayerFactory.choose_kind`."""
ENDS = {"before", "after"}
KERNELS = Path(__file__).with_name("kernels")
"""The folder of the compiled library, if it was built."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
VECTOR_BYTES = 4
OTHERS = {
    "--set torch.weights=int8": 1.0625,
    "--set torch.weights=int4": 0.66,
    "a GGUF file in Q8_0": 1.0625,
    "a GGUF file in Q4_K_M": 0.73,
}
"""The bytes of a number in other forms; those in which some matrices have more bits, on average."""


def measure_size(plan: StagePlan, find_part: FindPart) -> LoadedSize:
    """Return what the model of ``plan`` takes; see `parallax_core.api.BackendSpec.size`."""
    settings, room = TorchSettings(**plan.options), LAYERS.find_room()
    if (plan.device or probe_machine().device.lower()).startswith("cuda"):
        size = measure_loaded(plan, find_part, lambda stored: _weigh_on_gpu(plan, stored))
        item = _find_item
    else:
        values = 2 if plan.dtype == "bfloat16" else 4
        size = measure_loaded(plan, find_part, lambda stored: _weigh_on_cpu(plan, settings, stored), values, OTHERS)
        item = _find_adapter_item
    if not room.slots:
        return size
    return keep_adapters(size, plan, find_part, lambda stored: room.weigh(item(plan, stored)))


def _find_item(plan: StagePlan, stored: Sequence[StoredWeight]) -> int:
    return DTYPE_BYTES[find_stored(stored) if plan.dtype == "auto" else plan.dtype]


def _find_adapter_item(plan: StagePlan, stored: Sequence[StoredWeight]) -> int:
    """Return the bytes of a number of an adapter on a CPU; see `LayerFactory.adapter_dtype`."""
    return 4 if _find_kind(plan, TorchSettings(**plan.options), stored) == "float32" else 2


def _weigh_on_gpu(plan: StagePlan, stored: Sequence[StoredWeight]) -> Weigh:
    item = _find_item(plan, stored)
    return lambda weight: (item if weight.is_matrix else VECTOR_BYTES) * weight.numbers


def _find_kind(plan: StagePlan, settings: TorchSettings, stored: Sequence[StoredWeight]) -> WeightKind:
    kernels = settings.kernels != "off" and any(KERNELS.glob("native.*"))
    has_codes = any(map(_is_coded, stored))
    return choose_kind(plan.dtype, settings.weights, find_stored(stored), has_codes=has_codes, has_kernels=kernels)


def _weigh_on_cpu(plan: StagePlan, settings: TorchSettings, stored: Sequence[StoredWeight]) -> Weigh:
    kind = _find_kind(plan, settings, stored)
    item, fine = KIND_BYTES[kind], KIND_BYTES["int8" if kind == "int4" else kind]

    def weigh(weight: StoredWeight) -> float:
        if weight.form and settings.weights == "auto" and plan.dtype != "float32":
            layout = import_module("parallax_backend_torch.kernels.ggml").LAYOUTS.get(weight.form)
            return (KIND_BYTES[layout.kind] if layout else item) * weight.numbers
        if _is_coded(weight) and settings.weights == "auto" and plan.dtype != "float32":
            kept = import_module("parallax_backend_torch.grid_rows").find_product(weight.grid)
            return KIND_BYTES[kept or "int8"] * weight.numbers
        size = fine if weight.part in ENDS or ATTENTION.search(weight.name) else item
        return (size if weight.is_matrix else VECTOR_BYTES) * weight.numbers

    return weigh


def choose_kind(
    dtype: str, wanted: Literal["auto"] | WeightKind, stored: str, *, has_codes: bool, has_kernels: bool
) -> WeightKind:
    """Return the form of matrices on a CPU. Weights stored in bfloat16 stay so: that is exact, and is read faster.

    Args:
        dtype: of the plan.
        wanted: the setting ``weights``.
        stored: the dtype of most numbers in the files.
        has_codes: whether some weights are quantised, and so are exact in float32 alone.
        has_kernels: whether the compiled library multiplies.
    """
    if wanted != "auto":
        return wanted
    is_exact = stored == "bfloat16" and not (has_codes and dtype == "float32")
    return "bfloat16" if dtype == "bfloat16" or (is_exact and has_kernels) else "float32"


def _is_coded(weight: StoredWeight) -> bool:
    return weight.is_matrix and not weight.dtype
