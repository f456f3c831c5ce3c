"""Chooses the arguments of `sglang.Engine` for a plan, and refuses impossible plans beforehand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parallax_backend_sglang.settings import SglangSettings
from parallax_core.api import (
    ITEM_BYTES,
    ConfigReader,
    DType,
    EnginePlan,
    Machine,
    ParallaxError,
    Unsupported,
    format_bytes,
    read_config,
)

CPU_ROWS = 32
"""Answers that are computed at the same time on a CPU, unless a plan says otherwise."""
DEVICE = re.compile(r"cuda(?::(\d{1,3}))?")
LEAST_FRACTION = 0.01
"""The least share of the free memory that SGLang is given."""
MOST_LORAS = 64
"""The most LoRA adapters that SGLang keeps; the least recently used make room."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where SGLang computes."""

    is_cpu: bool
    index: int = 0
    """The number of the first GPU."""


def choose_device(name: str, settings: SglangSettings, *, has_cuda: bool) -> Device:
    """Return the device of a plan.

    Raises:
        Unsupported: if this machine does not have it, or it cannot do what ``settings`` ask for.
    """
    found = DEVICE.fullmatch(name)
    if name not in {"", "cpu"} and found is None:
        raise Unsupported(f"SGLang does not run on {name!r} here", "choose one of: cpu, cuda, cuda:NUMBER")
    if found and not has_cuda:
        raise Unsupported(f"there is no CUDA for SGLang, and the device is {name!r}", "leave --device out")
    device = Device(is_cpu=name == "cpu" or not has_cuda, index=int(found[1] or 0) if found else 0)
    if device.is_cpu and settings.tensor_parallel > 1:
        message = f"sglang.tensor_parallel is {settings.tensor_parallel}, and on a CPU it must be 1"
        raise Unsupported(message, "leave it out, or use a machine with GPUs")
    if device.is_cpu and settings.max_loras:
        message = f"sglang.max_loras is {settings.max_loras}, and SGLang's adapters need pinned memory, as CUDA has it"
        raise Unsupported(message, "leave it out, or serve adapters with --backend torch, mlx or vllm")
    if device.is_cpu and settings.quantization:
        message = f"sglang.quantization is {settings.quantization!r}, and its kernels have no CPU build"
        raise Unsupported(message, "leave it out, or use a machine with GPUs")
    return device


def make_arguments(plan: EnginePlan, settings: SglangSettings, device: Device) -> dict[str, Any]:
    """Return the arguments of `sglang.Engine`.

    Raises:
        ParallaxError: if the weights do not fit into the memory.
    """
    if device.is_cpu:
        plan = replace(plan, dtype=choose_dtype(plan.model, plan.dtype))
    found = make_common(plan.model, plan.dtype, settings, device) | {
        "tp_size": settings.tensor_parallel,
        "disable_radix_cache": settings.prefix_caching == "off",
        "incremental_streaming_output": True,
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": True,
        "disable_priority_preemption": True,
    }
    chosen = {
        "context_length": settings.context_length,
        "max_total_tokens": settings.max_total_tokens,
        "mem_fraction_static": settings.mem_fraction_static,
        "max_running_requests": plan.max_running,
        "chunked_prefill_size": plan.max_batch_tokens,
    }
    found |= {name: value for name, value in chosen.items() if value}
    if settings.max_loras:
        found |= {
            "enable_lora": True,
            "max_loras_per_batch": settings.max_loras,
            "max_loaded_loras": max(MOST_LORAS, settings.max_loras),
            "max_lora_rank": settings.max_lora_rank,
            "lora_target_modules": ["all"],
        }
    return found | (_choose_for_cpu(plan) if device.is_cpu else {})


def choose_dtype(model: Path, dtype: DType) -> DType:
    """Return the dtype in which a CPU computes a whole model.

    That is float32 for weights in float16, which PyTorch multiplies on CPUs at a small part of the speed of float32.
    """
    return "float32" if dtype == "auto" and _read_stored(model) == "float16" else dtype


def make_common(model: Path, dtype: str, settings: SglangSettings, device: Device) -> dict[str, Any]:
    """Return the arguments that engines and stages have in common."""
    found: dict[str, Any] = {
        "model_path": str(model),
        "skip_tokenizer_init": True,  # core makes the text
        "device": "cpu" if device.is_cpu else "cuda",
        "dtype": dtype,
        "base_gpu_id": device.index,
        "grammar_backend": "none",
        "log_level": settings.log_level,
    }
    chosen = {"quantization": settings.quantization, "attention_backend": settings.attention}
    if device.is_cpu:
        chosen["attention_backend"] = settings.attention or "torch_native"
        chosen["sampling_backend"] = "pytorch"
    return found | {name: value for name, value in chosen.items() if value}


def read_architecture(config: Mapping[str, Any]) -> str:
    """Return the architecture in a config.json; empty if missing."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _choose_for_cpu(plan: EnginePlan) -> dict[str, Any]:
    """Return what SGLang needs on a CPU without kernels of its own."""
    found: dict[str, Any] = {
        "disable_overlap_schedule": True,
        "sleep_on_idle": True,  # its scheduler would keep a core busy
        "max_running_requests": plan.max_running or CPU_ROWS,
        "mem_fraction_static": choose_fraction(plan, Machine().free_memory()),
    }
    return found


def choose_fraction(plan: EnginePlan, free: int | None) -> float:
    """Return the share of the ``free`` bytes for weights and KV cache, as SGLang counts it.

    SGLang leaves one minus that share of the memory that is free before it loads the weights; a plan states the share
    of the memory that is free after that.

    Raises:
        ParallaxError: if the weights do not fit.
    """
    if not free:
        return plan.memory_fraction
    needed = estimate_weights(plan.model, plan.dtype)
    if needed >= free:
        message = f"the weights of {plan.model.name} take {format_bytes(needed)}, and {format_bytes(free)} are free"
        raise ParallaxError(message, "close other programs, or choose a smaller model or --dtype bfloat16")
    fraction = 1 - (1 - needed / free) * (1 - plan.memory_fraction)
    return max(LEAST_FRACTION, round(fraction, 4))


def estimate_weights(model: Path, dtype: DType) -> int:
    """Return the bytes of the weights in memory, by the sizes of the files."""
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    stored = _read_stored(model)
    computed = stored if dtype == "auto" else dtype
    return int(size * ITEM_BYTES.get(computed, 2) / ITEM_BYTES.get(stored, 2))


def _read_stored(model: Path) -> str:
    """Return the dtype of the weights, as config.json names it."""
    reader = ConfigReader(read_config(model))
    return next((str(reader.raw[name]) for name in ("dtype", "torch_dtype") if reader.has(name)), "bfloat16")
