"""Turns errors of vLLM into errors that say what to change."""

from __future__ import annotations

from parallax_backend_vllm.logs import find_error
from parallax_core.api import BackendFailed, ParallaxError, Unsupported

LONGEST = 500
"""The most characters of vLLM's own text in a message."""

HINTS = (
    ("max seq len", "lower the option max_model_len, or raise kv_cache_gb (on CUDA gpu_memory_utilization)"),
    ("max_model_len", "lower the option max_model_len, or leave it out"),
    ("No available memory for the cache", "raise the option kv_cache_gb, or on CUDA gpu_memory_utilization"),
    ("desired CPU memory utilization", "set the option kv_cache_gb, or close other programs"),
    ("desired GPU memory utilization", "lower the option gpu_memory_utilization, or close other programs"),
    ("out of memory", "lower the options max_model_len or gpu_memory_utilization, or choose a smaller model"),
    ("uantization", "change the option quantization, or leave it out"),
    ("LoRA rank", "raise the option max_lora_rank"),
    ("not supported for now", "choose another --backend: `parallax plugins` lists them"),
)
"""A part of vLLM's message, and the next step."""


def explain_start(error: Exception) -> ParallaxError:
    """Return the error for a start of vLLM that failed with ``error``."""
    if isinstance(error, ParallaxError):
        return error
    text = find_error() or describe_error(error)
    hint = next((hint for part, hint in HINTS if part in text), "its log, above, says more")
    kind = Unsupported if "not supported" in text else BackendFailed
    return kind(f"vLLM cannot serve this model: {text[:LONGEST]}", hint)


def describe_error(error: BaseException) -> str:
    """Return an error in one line, without what pydantic adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix("Value error, ") for line in lines if line.startswith("Value error, ")]
    text = (told or lines or [type(error).__name__])[0]
    return text.partition(" [type=")[0]
