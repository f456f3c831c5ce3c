"""Writes a random model of a few megabytes with the tokenizer of the real one, which loads quickly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

NUM_LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 6, 64, 96, 4, 2
HEAD_DIM = HIDDEN // HEADS
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def write_tiny(folder: Path, real: Path) -> Path:
    """Write a model of the same family as the one in ``real``, with random weights, and return its folder."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(real / name, folder / name)
    config: dict[str, Any] = json.loads((real / "config.json").read_text())
    config |= {"num_hidden_layers": NUM_LAYERS, "hidden_size": HIDDEN, "intermediate_size": INNER}
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
    config |= {"max_position_embeddings": 512, "dtype": "float32", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(draw_tensors(config["vocab_size"])), folder / "model.safetensors")
    return folder


def draw_tensors(vocab_size: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield the name and value of each tensor."""
    random = np.random.default_rng(3)
    yield "model.embed_tokens.weight", random.standard_normal((vocab_size, HIDDEN), np.float32)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    for layer in range(NUM_LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", np.ones(HIDDEN, np.float32)
        for name, shape in SHAPES.items():
            yield f"model.layers.{layer}.{name}.weight", 0.3 * random.standard_normal(shape, np.float32)
