"""Makes vLLM's configuration of a stage, and refuses what a stage cannot do before anything is loaded."""

from __future__ import annotations

import os
from typing import Any

from parallax_backend_vllm.environ import choose_gpu, set_environ, set_threads
from parallax_backend_vllm.errors import describe_error
from parallax_backend_vllm.probe import is_cpu_build
from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import LayerRange, StagePlan, Unsupported, check_device, refuse_leases

DTYPES = ("float32", "bfloat16", "float16")
ON_CPU, ON_GPU = 512, 2048
"""The most tokens in a step, where the plan does not say."""
ROWS = 256
"""The most rows that vLLM computes at once; a step with more is computed in parts."""
REQUIRED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
"""The stage computes in its own process; vLLM's second model runner takes tokens from later ranks by torch.distributed,
and here there are none."""
HINT = "serve the model whole: --backend vllm without --stages and --layers"


def check_plan(plan: StagePlan, settings: VllmSettings) -> None:
    """Refuse options that a stage does not have, and leases.

    Raises:
        Unsupported: naming the option.
    """
    refuse_leases(plan, "vllm")
    check_device(plan, DTYPES, list_devices())
    if settings.tensor_parallel > 1:
        raise Unsupported("a stage on vLLM computes on one GPU, not by tensor_parallel", HINT)
    if settings.pipeline_parallel > 1:
        raise Unsupported("pipeline_parallel splits a model within vLLM, and a stage is split already", HINT)
    if settings.enforce_eager == "off":
        raise Unsupported("a stage on vLLM has no CUDA graphs and no torch.compile: enforce_eager is off", HINT)
    if settings.max_loras:
        raise Unsupported("a stage on vLLM takes no LoRA adapters: max_loras is for whole models", HINT)


def list_devices() -> list[str]:
    """Return the names of the devices that the installed vLLM computes on."""
    if is_cpu_build():
        return ["cpu"]
    import torch

    return ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def set_process(plan: StagePlan, settings: VllmSettings) -> None:
    """Set the environment of this process, which computes itself, before vLLM reads it."""
    set_environ()
    choose_gpu(plan.device)
    os.environ |= REQUIRED
    if is_cpu_build():
        import torch

        torch.set_num_threads(set_threads(settings))


def make_config(plan: StagePlan, settings: VllmSettings) -> Any:  # noqa: ANN401 -- vLLM is not typed here
    """Return the ``VllmConfig`` of a stage.

    Raises:
        Unsupported: if vLLM does not support the model, as it says.
    """
    from vllm import EngineArgs

    from parallax_backend_vllm.compat_loader import FORMAT, register_loader

    register_loader()
    chunk = plan.max_batch_tokens or (ON_CPU if is_cpu_build() else ON_GPU)
    arguments: dict[str, Any] = {
        "model": str(plan.model),
        "skip_tokenizer_init": True,
        "dtype": plan.dtype,
        "max_model_len": settings.max_model_len or None,
        "quantization": settings.quantization or None,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "block_size": settings.block_size or None,
        "load_format": FORMAT,
        "enforce_eager": True,
        "max_num_batched_tokens": chunk,
        "max_num_seqs": min(chunk, plan.max_running or ROWS),
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "disable_hybrid_kv_cache_manager": True,
        "async_scheduling": False,
        "kv_cache_memory_bytes": 1,  # an explicit size, so that vLLM does not measure; the stage allocates the cache
        "generation_config": "vllm",
        "distributed_executor_backend": "uni",
    }
    try:
        return EngineArgs(**arguments).create_engine_config()
    except Exception as error:
        message = f"vLLM does not take {plan.model.name}: {describe_error(error)}"
        raise Unsupported(message, "choose another --backend: `parallax plugins` lists them") from error


def check_family(config: Any, layers: LayerRange, num_layers: int) -> None:  # noqa: ANN401 -- vLLM is not typed here
    """Refuse models that cannot be stages.

    Raises:
        Unsupported: naming the architecture, and what it lacks.
    """
    model = config.model_config
    name = ", ".join(model.architectures)
    for attribute, what in (
        ("is_hybrid", "recurrent states"),
        ("is_attention_free", "recurrent states"),
        ("is_encoder_decoder", "an encoder"),
        ("is_multimodal_model", "inputs other than text"),
    ):
        if getattr(model, attribute):
            raise Unsupported(f"{name} has {what}, which a stage on vLLM does not support", HINT)
    if len(layers) < num_layers and not model.registry.is_pp_supported_model(model.architectures, model):
        raise Unsupported(f"vLLM does not split {name}: it has no support for pipelines", HINT)
