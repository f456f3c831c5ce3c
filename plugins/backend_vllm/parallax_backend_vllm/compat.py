"""Uses undocumented parts of vLLM for engines, and checks that the installed one has them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parallax_backend_vllm.probe import REMEDY
from parallax_backend_vllm.versions import explain_unsupported, find_installed
from parallax_core.api import BackendFailed, Unsupported

Interface = Mapping[str, Sequence[str]]
"""Objects of vLLM as ``module:name.attribute``; for each, the parameters, fields or attributes it must have."""

ENGINE: Interface = {
    "vllm:ModelRegistry": ("get_supported_archs",),
    "vllm:SamplingParams": (
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "prompt_logprobs"),
        *("detokenize", "output_kind"),
    ),
    "vllm.sampling_params:RequestOutputKind": ("DELTA",),
    "vllm.inputs:tokens_input": ("prompt_token_ids", "cache_salt"),
    "vllm.lora.request:LoRARequest": ("lora_name", "lora_int_id", "lora_path"),
    "vllm.engine.arg_utils:AsyncEngineArgs": (
        *("model", "skip_tokenizer_init", "dtype", "max_model_len", "quantization", "tensor_parallel_size"),
        *("pipeline_parallel_size", "gpu_memory_utilization", "kv_cache_memory_bytes", "kv_cache_dtype"),
        *("enforce_eager", "enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs", "scheduling_policy"),
        *("enable_lora", "max_loras", "max_lora_rank", "max_logprobs", "generation_config", "disable_log_stats"),
        *("distributed_executor_backend", "enable_log_requests"),
    ),
    "vllm.v1.engine.async_llm:AsyncLLM": ("errored", "dead_error", "shutdown", "vllm_config"),
    "vllm.v1.engine.async_llm:AsyncLLM.from_engine_args": ("engine_args", "stat_loggers"),
    "vllm.v1.engine.async_llm:AsyncLLM.generate": (
        *("prompt", "sampling_params", "request_id", "lora_request", "priority"),
    ),
    "vllm.config:CacheConfig": ("num_gpu_blocks",),
    "vllm.config:ModelConfig": ("get_total_num_hidden_layers", "get_vocab_size", "max_model_len", "dtype"),
    "vllm.config:SchedulerConfig": ("max_num_seqs", "max_num_batched_tokens"),
    "vllm.v1.executor.uniproc_executor:UniProcExecutor": (),
    "vllm.v1.metrics.loggers:StatLoggerBase": ("record", "log_engine_initialized"),
    "vllm.v1.metrics.loggers:StatLoggerBase.record": ("scheduler_stats", "iteration_stats"),
    "vllm.v1.metrics.stats:SchedulerStats": (
        *("num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "prefix_cache_stats"),
    ),
}
"""What an engine for a whole model uses."""


def start_llm(arguments: Mapping[str, Any], record: Callable[[Any, Any], None]) -> Any:  # noqa: ANN401 -- vLLM is not typed here
    """Start vLLM's processes and load the model; return the ``AsyncLLM``.

    Args:
        arguments: those of ``AsyncEngineArgs``.
        record: called with vLLM's scheduler and iteration statistics after each step; either may be None.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[make_stat_logger(record)])


def find_executor() -> object:
    """Return the executor that computes in the process of vLLM's scheduler."""
    return load("vllm.v1.executor.uniproc_executor:UniProcExecutor")


def make_stat_logger(record: Callable[[Any, Any], None]) -> Callable[[Any, int], Any]:
    """Return a factory of vLLM's stat loggers that pass the statistics of each step on to ``record``."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StatLogger(StatLoggerBase):  # type: ignore[misc]
        """Passes statistics on."""

        def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
            """Take what vLLM gives; none of it is needed."""

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: object, **__: object) -> None:  # noqa: ANN401
            """Pass the statistics of a step on."""
            record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            """Do nothing."""

    return StatLogger


def check_version() -> None:
    """Check the installed release of vLLM.

    Raises:
        Unsupported: if there is none, or it is outside the supported range.
    """
    if reason := explain_unsupported(find_installed()):
        raise Unsupported(reason, REMEDY)


def check_interface(interface: Interface) -> None:
    """Import the objects of ``interface`` and check that they have the listed parts.

    Raises:
        Unsupported: if any of it has moved; the message names every such part.
        BackendFailed: if vLLM itself cannot be imported.
    """
    try:
        importlib.import_module("vllm")
    except Exception as error:
        message = f"vllm {find_installed()} cannot be imported: {type(error).__name__}: {error}"
        raise BackendFailed(message, f"make its environment anew: {REMEDY}") from error
    if moved := list(find_moved(interface)):
        message = f"vllm {find_installed()} has changed parts that this backend uses: {'; '.join(moved)}"
        raise Unsupported(message, f"install a release that it was tested with: {REMEDY}")


def find_moved(interface: Interface) -> Iterator[str]:
    """Yield a description of each part of ``interface`` that the installed vLLM does not have."""
    for path, parts in interface.items():
        try:
            found = load(path)
        except (ImportError, AttributeError) as error:
            yield f"{path} is gone ({error})"
            continue
        known = _list_parts(found)
        if missing := [part for part in parts if part not in known]:
            yield f"{path} has no {', '.join(missing)}"


def load(path: str) -> object:
    """Return the object at ``module:name.attribute``.

    Raises:
        ImportError: if there is no such module.
        AttributeError: if the module has no such object.
    """
    module, _, names = path.partition(":")
    found: object = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def _list_parts(found: object) -> set[str]:
    """Return the parameters of a function, or the attributes, fields and annotations of a class or module."""
    if inspect.isfunction(found) or inspect.ismethod(found):
        return set(inspect.signature(found).parameters)
    parts = set(dir(found))
    for each in inspect.getmro(found) if isinstance(found, type) else ():
        parts.update(getattr(each, "__annotations__", ()))
    return parts
