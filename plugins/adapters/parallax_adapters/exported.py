"""Writes a stored adapter in PEFT's format, as plainly as can be, for engines that read it themselves.

Engines differ in what they know of the format: SGLang takes one rank and one scale for all modules, and reads neither
patterns nor rsLoRA; vLLM matches patterns as regular expressions of Python, which may take any time. So ranks are made
equal, scales are multiplied into the matrices, and nothing else of the settings is passed on.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from parallax_adapters.peft_config import CONFIG, LoraConfig, parse_config
from parallax_adapters.peft_files import MATRIX, WEIGHTS, split_layers, to_floats, write_matrices
from parallax_core.api import Tensor


def write_export(stored: Path, target: Path) -> None:
    """Write the adapter whose files of single layers are in ``stored``.

    Raises:
        OSError: if it cannot be written.
    """
    config = parse_config((stored / CONFIG).read_bytes())
    parts = [each for layer in split_layers(stored).values() for each in layer]
    named = [(found, tensor) for name, tensor in parts if (found := MATRIX.fullmatch(name)) is not None]
    modules = sorted({found["module"] for found, _ in named})
    rank = config.rank if config.is_plain else max(map(config.find_rank, modules))
    matrices = [
        (
            f"base_model.model.{found['module']}.lora_{found['part']}.weight",
            tensor if config.is_plain else _even(tensor, found["part"], found["module"], config, rank),
        )
        for found, tensor in named
    ]
    write_matrices(target / WEIGHTS, matrices)
    alpha = config.alpha if config.is_plain else rank
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none"}
    names = sorted({module.rpartition(".")[2] for module in modules})
    (target / CONFIG).write_text(json.dumps({**fields, "target_modules": names}))


def _even(tensor: Tensor, part: str, module: str, config: LoraConfig, rank: int) -> Tensor:
    """Return a matrix with zeros up to a rank; ``B`` with the scale of its module."""
    spare = rank - config.find_rank(module)
    values = to_floats(tensor)
    if part == "A":
        values = np.pad(values, ((0, spare), (0, 0)))
    else:
        values = np.pad(values * np.float32(config.find_scale(module)), ((0, 0), (0, spare)))
    return Tensor("float32", values.shape, np.ascontiguousarray(values).data.cast("B"))
