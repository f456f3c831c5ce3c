"""Finds out from config.json, without importing torch, whether this backend runs a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from parallax_backend_torch.config import GGUF, Config
from parallax_backend_torch.probe import probe_machine
from parallax_formats import FORMATS

QUANTIZED = {("GptOssForCausalLM", "mxfp4")}
"""The architectures and quantisation methods that their blocks read."""


def reads_weights(config: Config) -> bool:
    """Return whether this backend reads the form in which weights are stored."""
    return config.method in {"", GGUF, *FORMATS} or (config.architecture, config.method) in QUANTIZED


def advise(config: Config) -> str:
    """Return the hint for weights in a form that this backend does not read: the backends that do."""
    able = "--backend mlx" if config.method == "unknown" else "--backend vllm or --backend sglang"
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
    if config.method == GGUF:
        return "torch"
    if "torch" in with_blocks and reads_weights(config):
        return None
    can_run = reads_weights(config) and find_spec("transformers") is not None
    return None if can_run and probe_machine().device != "cpu" else others[0]
