"""Makes vLLM's engine arguments from a plan and the options of the backend."""

from __future__ import annotations

from typing import Any

from parallax_backend_vllm.capabilities import MAX_LOGPROBS
from parallax_backend_vllm.checks import GIGABYTE, find_kv_bytes
from parallax_backend_vllm.compat import find_executor
from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import EnginePlan


def make_arguments(plan: EnginePlan, settings: VllmSettings, *, is_cpu: bool) -> dict[str, Any]:
    """Return the arguments of ``AsyncEngineArgs``.

    Core has the tokenizer, the chat template and the recommended sampling, so vLLM loads none of them.

    Raises:
        ParallaxError: if there is too little memory.
    """
    found: dict[str, Any] = {
        "model": str(plan.model),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": plan.dtype,
        "max_model_len": settings.max_model_len or None,
        "quantization": settings.quantization or None,
        "tensor_parallel_size": settings.tensor_parallel,
        "pipeline_parallel_size": settings.pipeline_parallel,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "enforce_eager": is_cpu if settings.enforce_eager == "auto" else settings.enforce_eager == "on",
        "enable_prefix_caching": settings.prefix_caching == "on",
        "scheduling_policy": "priority",
        "max_logprobs": MAX_LOGPROBS,
        "disable_log_stats": True,  # of vLLM itself: the recorder of this backend is given instead
        "enable_log_requests": False,
    }
    if plan.max_batch_tokens:
        found["max_num_batched_tokens"] = plan.max_batch_tokens
    if plan.max_running:
        found["max_num_seqs"] = plan.max_running
    if settings.max_loras:
        places = settings.max_loras + is_cpu  # one for requests without, see `VllmEngine`
        found |= {"enable_lora": True, "max_loras": places, "max_lora_rank": settings.max_lora_rank}
    return found | (_place_on_cpu(plan, settings) if is_cpu else _place_on_gpus(settings))


def _place_on_cpu(plan: EnginePlan, settings: VllmSettings) -> dict[str, Any]:
    """Compute in the process of vLLM's scheduler: by name, vLLM would start another process for that."""
    return {"kv_cache_memory_bytes": find_kv_bytes(plan, settings), "distributed_executor_backend": find_executor()}


def _place_on_gpus(settings: VllmSettings) -> dict[str, Any]:
    num_bytes = int(settings.kv_cache_gb * GIGABYTE)
    share = {"gpu_memory_utilization": settings.gpu_memory_utilization}
    return share | ({"kv_cache_memory_bytes": num_bytes} if num_bytes else {})
