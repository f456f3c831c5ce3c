"""Shuffles the channels of a Llama, so that it computes the same from weights in other quantization groups."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def shuffle_model(source: Path, target: Path, seed: int = 0) -> None:
    """Write the model in ``source`` to the folder ``target``, with three kinds of channels in random orders.

    These are the channels of the residual stream, of the inside of each MLP, and of each value head.

    Args:
        source: the folder of a Llama in one file, without biases.
        target: an existing empty folder.
        seed: the seed of the random orders.
    """
    config = json.loads((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(config["hidden_size"], generator=random)
    for name, weight in weights.items():
        is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
        weights[name] = weight[order] if is_output or weight.dim() == 1 else weight[:, order]
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        inner = torch.randperm(config["intermediate_size"], generator=random)
        for name in ("gate", "up"):
            weights[f"{prefix}mlp.{name}_proj.weight"] = weights[f"{prefix}mlp.{name}_proj.weight"][inner]
        weights[f"{prefix}mlp.down_proj.weight"] = weights[f"{prefix}mlp.down_proj.weight"][:, inner]
        _shuffle_values(weights, f"{prefix}self_attn.", config, random)
    for path in source.glob("*.json"):
        shutil.copy(path, target)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, target / "model.safetensors")


def _shuffle_values(
    weights: dict[str, torch.Tensor], prefix: str, config: dict[str, int], random: torch.Generator
) -> None:
    """Shuffle the channels of each value head, and the matching output columns of the query heads that share it."""
    width, heads = config["head_dim"], config["num_key_value_heads"]
    orders = [torch.randperm(width, generator=random) for _ in range(heads)]
    rows = torch.cat([head * width + order for head, order in enumerate(orders)])
    shared = config["num_attention_heads"] // heads
    columns = torch.cat([head * width + orders[head // shared] for head in range(heads * shared)])
    weights[f"{prefix}v_proj.weight"] = weights[f"{prefix}v_proj.weight"][rows]
    weights[f"{prefix}o_proj.weight"] = weights[f"{prefix}o_proj.weight"][:, columns]
