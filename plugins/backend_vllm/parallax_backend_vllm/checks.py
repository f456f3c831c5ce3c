"""Refuses plans that vLLM cannot serve, before any of its processes starts."""

from __future__ import annotations

from pathlib import Path

from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import EnginePlan, Machine, ParallaxError, Unsupported, format_bytes, read_config

GIGABYTE = 10**9
SPARE = 2**30
"""Bytes that vLLM's processes need besides the weights and the KV cache."""


def check_device(plan: EnginePlan, settings: VllmSettings, *, is_cpu: bool) -> None:
    """Check that the device can do what the options ask for.

    Raises:
        Unsupported: if not; the message names the option.
    """
    if plan.device.partition(":")[0] not in {"", "cpu" if is_cpu else "cuda"}:
        built = "CPUs" if is_cpu else "CUDA"
        raise Unsupported(f"--device {plan.device} cannot be used: this vLLM is built for {built}", "leave it out")
    if not is_cpu:
        return
    for name in ("tensor_parallel", "pipeline_parallel"):
        if (size := getattr(settings, name)) > 1:
            message = f"the option {name} is {size}, and on a CPU vLLM runs in one process"
            raise Unsupported(message, f"leave {name} out, or use --data-parallel {size} for several replicas")


def check_family(folder: Path) -> None:
    """Check that vLLM has the model's architecture.

    Raises:
        Unsupported: if it has not.
    """
    from vllm import ModelRegistry

    names = list(read_config(folder).get("architectures") or ())
    known = set(ModelRegistry.get_supported_archs())
    if names and not known & set(names):
        message = f"vLLM has no model for the architecture {', '.join(names)}"
        raise Unsupported(message, "choose another --backend: `parallax plugins` lists them")


def find_kv_bytes(plan: EnginePlan, settings: VllmSettings) -> int:
    """Return the bytes of the KV cache on a CPU: as configured, or a share of the memory that the weights leave.

    Raises:
        ParallaxError: if there is too little memory.
    """
    free, weights = Machine().free_memory(), measure_weights(plan)
    if free is None:
        return int(settings.kv_cache_gb * GIGABYTE) or SPARE
    left = free - weights - SPARE
    wanted = int(settings.kv_cache_gb * GIGABYTE) or max(0, int(left * plan.memory_fraction))
    if left < max(wanted, SPARE // 8):
        message = (
            f"{plan.model.name} needs {format_bytes(weights)} for its weights and {format_bytes(wanted)} for the KV "
            f"cache, and {format_bytes(free)} are free"
        )
        raise ParallaxError(message, "close other programs, choose a smaller model, or lower the option kv_cache_gb")
    return wanted


def measure_weights(plan: EnginePlan) -> int:
    """Return the bytes of the weights in memory, approximately: those of the files, twice if half is widened."""
    stored = sum(path.stat().st_size for path in plan.model.glob("*.safetensors"))
    config = read_config(plan.model)
    is_half = str(config.get("dtype") or config.get("torch_dtype")) in {"bfloat16", "float16"}
    return stored * (2 if is_half and plan.dtype == "float32" else 1)
