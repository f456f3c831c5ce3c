"""GPT-OSS: sinks, windows in every other layer, experts with biases, in full precision or MXFP4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.decoder_layer import PlainLayer, WholeLayer, build_plain
from parallax_backend_torch.experts import Experts
from parallax_backend_torch.heads import Attention, Look, read_heads
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.model import read_shape, read_windows
from parallax_backend_torch.mxfp4 import widen_blocks
from parallax_backend_torch.rope import make_rope
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, slots=True)
class GptOssExpert:
    """Gate, up and down; both halves are clamped, and the gate is an approximate GELU."""

    into: Packed
    """The rows of gate, then those of up."""
    back: Packed
    limit: float
    alpha: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: [tokens, width]."""
        gate, up = self.into.apply(x).chunk(2, dim=1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.back.apply((up + 1) * gate * torch.sigmoid(gate * self.alpha))


class GptOss:
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        self.shape = read_shape(config)
        self._heads = read_heads(config)
        self._windows = read_windows(config, [FULL if index % 2 else SLIDING for index in range(self.shape.num_layers)])
        self._rope = make_rope(config, self._heads.width)
        self._num_experts = config.count("num_local_experts", "num_experts")
        self._num_chosen = config.count("num_experts_per_tok", "experts_per_token")
        self._clamps = config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values."""
        return self._heads.keep(self._windows[index])

    def build_attention(self, index: int, weights: Weights) -> Attention:
        """Build attention, with sinks."""
        return Attention(weights, self._heads, Look(rope=self._rope, window=self._windows[index]))

    def build_mixer(self, weights: Weights) -> Experts:
        """Build experts."""
        router = weights.make_linear("router", purpose="router")
        parts = zip(
            read_matrices(weights.within("experts"), "gate_up_proj"),
            read_matrices(weights.within("experts"), "down_proj"),
            strict=True,
        )
        experts = []
        for (into, into_bias), (back, back_bias) in parts:
            halves = torch.cat([into[0::2], into[1::2]]), torch.cat([into_bias[0::2], into_bias[1::2]])
            made = weights.keep_linear(*halves), weights.keep_linear(back, back_bias)
            experts.append(GptOssExpert(*made, *self._clamps))
        return Experts(router, experts, self._route)

    def build_layer(self, index: int, weights: Weights) -> PlainLayer | WholeLayer:
        """Build a layer."""
        attention = self.build_attention(index, weights.within("self_attn"))
        return build_plain(
            weights, (self.shape.eps, self.shape.norm_offset), attention, self.build_mixer(weights.within("mlp"))
        )

    def _route(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the best experts; their shares are a softmax over these only."""
        best, chosen = scores.topk(self._num_chosen, dim=-1)
        return chosen, best.softmax(-1)


def read_matrices(weights: Weights, name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the matrix [out, in] and the bias [out] of each expert.

    Files store all experts in one tensor: transposed, or, if quantised, as blocks and scales.
    """
    biases = weights.read_plain(f"{name}_bias").float()
    if weights.has(f"{name}_blocks"):
        blocks, scales = weights.read_plain(f"{name}_blocks"), weights.read_plain(f"{name}_scales")
        for block, scale, bias in zip(blocks, scales, biases, strict=True):
            yield widen_blocks(block, scale), bias
        return
    for matrix, bias in zip(weights.read_plain(name), biases, strict=True):
        yield matrix.T.contiguous(), bias
