"""Finds out from config.json, without importing torch, whether this backend runs a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from parallax_backend_torch.config import GGUF, Config
from parallax_backend_torch.probe import probe_machine

QUANTIZED = {("GptOssForCausalLM", "mxfp4")}
"""The architectures and quantisation methods that are read, in addition to the blocks of GGUF files."""


def reads_weights(config: Config) -> bool:
    """Return whether this backend reads the form in which weights are stored."""
    method = name_method(config)
    return not config.quantization or method == GGUF or (config.architecture, method) in QUANTIZED


def name_method(config: Config) -> str:
    """Return the quantisation method in config.json; empty: unquantised, or not given."""
    return str((config.quantization or {}).get("quant_method", ""))


def name_form(config: Config) -> str:
    """Return the form in which quantised weights are stored, for a message."""
    if method := name_method(config):
        return method
    bits = (config.quantization or {}).get("bits")
    return f"{bits} bits of mlx-lm" if bits else "a quantization that config.json does not name"


def advise(config: Config) -> str:
    """Return the hint for weights in a form that this backend does not read: the backends that do."""
    able = "--backend vllm or --backend sglang" if name_method(config) else "--backend mlx"
    return f"choose {able}, or the model in full precision"


def choose_backend(
    model_config: Mapping[str, Any], available: Sequence[str], with_blocks: Collection[str]
) -> str | None:
    """Return the backend for a model; None leaves the choice to the ranks of available backends.

    Models with the blocks of a GGUF file run on this backend, since others do not read them. Models that run only on
    the code of transformers, or not at all, are left to another backend, unless a GPU outweighs that.

    Args:
        model_config: the model's config.json.
        available: the backends that run here, best rank first.
        with_blocks: the backends for which the model's adapter has blocks.
    """
    config = Config(model_config)
    others = [name for name in available if name != "torch"]
    if "torch" not in available or not others:
        return None
    if name_method(config) == GGUF:
        return "torch"
    if "torch" in with_blocks and reads_weights(config):
        return None
    can_run = reads_weights(config) and find_spec("transformers") is not None
    return None if can_run and probe_machine().device != "cpu" else others[0]
