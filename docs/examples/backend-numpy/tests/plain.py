"""A tiny Llama with random weights, and the same model computed plainly: in float64, at once, without pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

VOCAB, WIDTH, HEADS, KV_HEADS, DIM, INNER, LAYERS = 96, 32, 4, 2, 8, 40, 4
THETA, EPS = 1000.0, 1e-5
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def make_weights() -> dict[str, Array]:
    """Return random weights, large enough that no two tokens are equally probable."""
    source = np.random.default_rng(7)
    layer = {
        "self_attn.q_proj": (HEADS * DIM, WIDTH),
        "self_attn.k_proj": (KV_HEADS * DIM, WIDTH),
        "self_attn.v_proj": (KV_HEADS * DIM, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * DIM),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
    }
    shapes = {f"model.layers.{index}.{name}": shape for index in range(LAYERS) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens": (VOCAB, WIDTH), "model.norm": (WIDTH,), "lm_head": (VOCAB, WIDTH)}
    return {
        f"{name}.weight": (
            1 + source.normal(0, 0.2, shape) if len(shape) == 1 else source.normal(0, 0.3, shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


WEIGHTS = make_weights()


def write_model(folder: Path) -> Path:
    """Write the model in the standard layout, its weights in the safetensors format."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header: dict[str, Any] = {}
    end = 0
    for name, array in WEIGHTS.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in WEIGHTS.values())
    (folder / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return folder


def compute_logits(tokens: Sequence[int]) -> list[float]:
    """Return the logits after ``tokens``."""
    weights = {name.removesuffix(".weight"): array.astype(np.float64) for name, array in WEIGHTS.items()}
    x = weights["model.embed_tokens"][list(tokens)]
    for index in range(LAYERS):
        part = {name.rpartition(".")[2]: array for name, array in weights.items() if f".layers.{index}." in name}
        y = norm(x, part["input_layernorm"])
        heads = [attend(y, part, head) for head in range(HEADS)]
        x = x + np.concatenate(heads, 1) @ part["o_proj"].T
        y = norm(x, part["post_attention_layernorm"])
        gate = y @ part["gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ part["up_proj"].T)) @ part["down_proj"].T
    logits: list[float] = (weights["lm_head"] @ norm(x, weights["model.norm"])[-1]).tolist()
    return logits


def norm(x: Array, weight: Array) -> Array:
    """Return x with a mean square of 1, times a weight."""
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + EPS) * weight)


def attend(y: Array, part: dict[str, Array], head: int) -> Array:
    """Return what one head sees: for each token the mean of the values up to it, weighed by how keys fit its query."""
    shared = head // (HEADS // KV_HEADS)
    query = turn(y @ part["q_proj"][head * DIM : (head + 1) * DIM].T)
    key = turn(y @ part["k_proj"][shared * DIM : (shared + 1) * DIM].T)
    value = y @ part["v_proj"][shared * DIM : (shared + 1) * DIM].T
    seen = []
    for index in range(len(y)):
        weight = np.exp(key[: index + 1] @ query[index] / np.sqrt(DIM))
        seen.append(weight @ value[: index + 1] / weight.sum())
    return np.array(seen)


def turn(x: Array) -> Array:
    """Return each row turned by its position: the coordinates i and i + DIM / 2 by position * THETA ** (-2 i / DIM)."""
    turned = x.copy()
    for place in range(len(x)):
        for i in range(DIM // 2):
            j, angle = i + DIM // 2, place * THETA ** (-2 * i / DIM)
            turned[place, i] = x[place, i] * np.cos(angle) - x[place, j] * np.sin(angle)
            turned[place, j] = x[place, j] * np.cos(angle) + x[place, i] * np.sin(angle)
    return turned
