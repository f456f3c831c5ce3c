"""Writes random models of few megabytes with the tokenizer of the real one, which load and answer quickly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

HEADS, KV_HEADS = 4, 2


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    layers: int
    hidden: int
    inner: int
    context: int

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of the matrices of a layer."""
        of_keys = self.hidden // HEADS * KV_HEADS
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (of_keys, self.hidden),
            "self_attn.v_proj": (of_keys, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.inner, self.hidden),
            "mlp.up_proj": (self.inner, self.hidden),
            "mlp.down_proj": (self.hidden, self.inner),
        }


TINY = Sizes(layers=6, hidden=64, inner=96, context=512)
SPLIT = Sizes(layers=12, hidden=64, inner=4096, context=2048)
"""Its layers take four times the room of its embedding, so that a machine has to have half of them to hold them all."""
NUM_LAYERS = TINY.layers


def write_tiny(folder: Path, real: Path, sizes: Sizes = TINY) -> Path:
    """Write a model of the same family as the one in ``real``, with random weights, and return its folder."""
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(real / name, folder / name)
    config: dict[str, Any] = json.loads((real / "config.json").read_text())
    config |= {"num_hidden_layers": sizes.layers, "hidden_size": sizes.hidden, "intermediate_size": sizes.inner}
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": sizes.hidden // HEADS}
    config |= {"max_position_embeddings": sizes.context, "dtype": "float32", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(draw_tensors(config["vocab_size"], sizes)), folder / "model.safetensors")
    return folder


def draw_tensors(vocab_size: int, sizes: Sizes) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield the name and value of each tensor."""
    random = np.random.default_rng(3)
    yield "model.embed_tokens.weight", random.standard_normal((vocab_size, sizes.hidden), np.float32)
    yield "model.norm.weight", np.ones(sizes.hidden, np.float32)
    for layer in range(sizes.layers):
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", np.ones(sizes.hidden, np.float32)
        for name, shape in sizes.shapes.items():
            yield f"model.layers.{layer}.{name}.weight", 0.3 * random.standard_normal(shape, np.float32)
