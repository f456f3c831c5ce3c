"""GPT-OSS: sinks, windows in every other layer, experts with biases, in full precision or MXFP4."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from parallax_backend_torch.api import Clamp, ClampedMlp, Config, Experts, MicroRows, Packed, Weights, name_experts
from parallax_models.blocks.decoder import Decoder


class GptOss(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_chosen = self.config.count("num_experts_per_tok", "experts_per_token")
        self.clamp = read_clamp(self.config)

    def build_mixer(self, index: int, weights: Weights) -> Experts:  # noqa: ARG002 -- every layer is alike
        """Build experts."""
        weights = weights.within("mlp")
        router, stored = weights.make_linear("router", purpose="router"), weights.within("experts")
        if stored.has("gate_proj.weight"):
            pairs = make_stacked(stored, self.config.count("num_local_experts", "num_experts"))
        else:
            pairs = zip(make_matrices(stored, "gate_up_proj", 2), make_matrices(stored, "down_proj", 1), strict=True)
        experts = name_experts(weights, list(pairs), ("gate_even", "up_odd"))
        return Experts(router, [ClampedMlp(*pair, self.clamp) for pair in experts], self._route)

    def _route(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the best experts; their shares are a softmax over these only."""
        best, chosen = scores.topk(self.num_chosen, dim=-1)
        return chosen, best.softmax(-1)


def read_clamp(config: Config) -> Clamp:
    """Return the limits of experts, whose gate is an approximate GELU."""
    return Clamp(config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702), shift=1.0)


def make_stacked(weights: Weights, num: int) -> Iterator[tuple[Packed, Packed]]:
    """Yield the matrices of each expert, as mlx-lm stacks them."""
    gate, up, down = (weights.read_plain(f"{name}_proj.bias").float() for name in ("gate", "up", "down"))
    for number, biases in enumerate(zip(torch.cat([gate, up], 1), down, strict=True)):
        both = weights.make_stacked((number, num), "gate_proj", "up_proj", bias=biases[0])
        yield both, weights.make_stacked((number, num), "down_proj", bias=biases[1])


def make_matrices(weights: Weights, name: str, step: int) -> Iterator[Packed]:
    """Yield the matrix of each expert; of its rows first every ``step``-th, then those after them.

    Files store all experts in one tensor: transposed, or, if quantised, as blocks and scales.
    """

    def part(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[start::step] for start in range(step)])

    biases = weights.read_plain(f"{name}_bias").float()
    if weights.has(f"{name}_blocks"):
        blocks, scales = weights.read_plain(f"{name}_blocks"), weights.read_plain(f"{name}_scales")
        for block, scale, bias in zip(blocks, scales, biases, strict=True):
            yield weights.keep_blocks(MicroRows(part(block), part(scale)), part(bias))
        return
    for matrix, bias in zip(weights.read_plain(name), biases, strict=True):
        yield weights.keep_linear(part(matrix.T), part(bias))
