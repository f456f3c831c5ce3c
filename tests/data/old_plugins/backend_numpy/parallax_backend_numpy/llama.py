"""The arithmetic of Llama (Touvron et al. 2023) for one row, over keys and values that lie in slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallax_core.api import LayerRange, Row, Tensor

Array = np.ndarray[Any, np.dtype[Any]]


class Llama:
    """Some layers of a model, and what comes before and after them if it is there; a `parallax_core.api.RowModel`."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array], layers: LayerRange, slots: int) -> None:
        self._weights, self._eps, self._layers = weights, config["rms_norm_eps"], range(layers.start, layers.stop)
        self._dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
        self._speeds = theta ** -(np.arange(0, self._dim, 2) / self._dim)
        self._kv = np.zeros((len(layers), 2, slots, config["num_key_value_heads"], self._dim), np.float32)

    def run(self, row: Row, slots: Sequence[int], before: Tensor | None) -> Tensor:
        """Return the hidden states after these layers."""
        x = read_array(before) if before else self._weights["model.embed_tokens.weight"][list(row.tokens)]
        for layer, kv in zip(self._layers, self._kv, strict=True):
            x = self._run_layer(f"model.layers.{layer}", x, kv, np.array(slots))
        return Tensor("float32", x.shape, x.tobytes())

    def score(self, states: Tensor, offset: int) -> Sequence[float]:
        """Return the logits after a token; a tied head is the embedding."""
        head = "lm_head" if "lm_head.weight" in self._weights else "model.embed_tokens"
        return [float(logit) for logit in self._project(self._norm(read_array(states)[offset], "model.norm"), head)]

    def copy(self, src: int, dst: int, num: int) -> None:
        """Copy keys and values from slots to others."""
        self._kv[:, :, dst : dst + num] = self._kv[:, :, src : src + num]

    def _run_layer(self, name: str, x: Array, kv: Array, slots: Array) -> Array:
        places = np.arange(len(slots) - len(x), len(slots))
        y = self._norm(x, f"{name}.input_layernorm")
        q, k, v = (self._project(y, f"{name}.self_attn.{part}_proj").reshape(len(x), -1, self._dim) for part in "qkv")
        kv[0, slots[places]], kv[1, slots[places]] = self._turn(k, places), v
        x = x + self._project(attend(self._turn(q, places), *kv[:, slots]), f"{name}.self_attn.o_proj")
        y = self._norm(x, f"{name}.post_attention_layernorm")
        gate, up = (self._project(y, f"{name}.mlp.{part}_proj") for part in ("gate", "up"))
        return x + self._project(gate * (1 + np.tanh(gate / 2)) / 2 * up, f"{name}.mlp.down_proj")

    def _project(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T

    def _norm(self, x: Array, name: str) -> Array:
        return np.asarray(self._weights[f"{name}.weight"] * (x / np.sqrt((x * x).mean(-1, keepdims=True) + self._eps)))

    def _turn(self, x: Array, places: Array) -> Array:
        """Turn each head by the angles of its position (Su et al. 2021); its halves are the two coordinates."""
        halves = x[..., : self._dim // 2] + 1j * x[..., self._dim // 2 :]
        turned = halves * np.exp(1j * places[:, None, None] * self._speeds)
        return np.concatenate([turned.real, turned.imag], -1).astype(np.float32)


def attend(q: Array, k: Array, v: Array) -> Array:
    """Let the last tokens of a sequence see those up to themselves; several heads of queries share one of keys."""
    num, (seen, heads, dim) = len(q), k.shape
    scores = np.einsum("nhgd,mhd->hgnm", q.reshape(num, heads, -1, dim), k) / np.float32(dim**0.5)
    scores[..., np.tri(num, seen, seen - num) == 0] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hgnm,mhd->nhgd", weights / weights.sum(-1, keepdims=True), v).reshape(num, -1))


def read_array(tensor: Tensor) -> Array:
    """Return a tensor as float32; a bfloat16 is the upper half of one."""
    if tensor.dtype == "bfloat16":
        return (np.frombuffer(tensor.data, "<u2").astype("<u4") << 16).view("<f4").reshape(tensor.shape)
    return np.frombuffer(tensor.data, tensor.dtype).astype(np.float32).reshape(tensor.shape)
