"""Hy4: latent attention with gates and sinks to chosen tokens, between four streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from parallax_backend_torch.api import (
    ChoosingLayer,
    Clamp,
    Config,
    GatedMlp,
    HyperConnection,
    HyperHead,
    HyperLayer,
    HyperRule,
    IndexedAttention,
    Layer,
    Mixer,
    Norm,
    Weights,
    build_experts,
    build_groups,
    build_parts,
    name_factors,
)
from parallax_models.blocks.deepseek_v32 import GlmMoeDsa
from parallax_models.deepseek_v3 import list_sparse, read_experts

CONNECTIONS = "hc_pre.hc_{}_layer", "hc_{}_layer.hc_pre", "hc_{}_layer"
HEADS = "hc_pre.hc_head", "hc_head.hc_pre", "hc_head"
"""Where checkpoints have the tensors of streams; transformers writes the first."""
NORMS = "input_layernorm", "post_attention_layernorm"


class HyAttention(IndexedAttention):
    """See `IndexedAttention`."""

    is_paired = False


class HyV4(GlmMoeDsa):
    """See `parallax_backend_torch.api.Model`."""

    attention: ClassVar[type[IndexedAttention]] = HyAttention

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        eps = self.config.number("hc_eps", 1e-6)
        self.index = replace(self.index, eps=self.shape.eps)
        self.shape = replace(self.shape, after=("hc_pre", "hc_head"))
        self.rule = HyperRule(
            num=self.config.count("hc_mult", default=4),
            norm_eps=self.shape.eps,
            eps=eps,
            magnitude=self.config.number("hc_magnitude", 2.0),
            floor=eps,
        )

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build clamped experts, or in the first layers an MLP."""
        weights = find_gate(weights.within("mlp"))
        if not list_sparse(self.config)[index]:
            return GatedMlp(weights)
        clamp, num = Clamp(self.config.number("swiglu_limit", 10.0)), read_experts(self.config).num
        return build_groups(self.config, weights, self.make_route(weights), build_experts(weights, num, clamp=clamp))

    def build_attention(self, index: int, weights: Weights) -> IndexedAttention:
        """Build attention, with an index if the layer has one."""
        return super().build_attention(index, find_gate(weights.rename(sinks="learnable_sink_param"), "self_attn."))

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer between streams."""
        attention, mixer, top = self.build_attention(index, weights), self.build_mixer(index, weights), weights.top()
        norms = [Norm.read(weights, name, self.shape.eps) for name in NORMS]
        mixes = [HyperConnection(find_factors(weights, CONNECTIONS, name, "hc"), self.rule) for name in ("attn", "mlp")]
        is_last = index == self.shape.num_layers - 1
        layer = HyperLayer(
            parts=build_parts(mixes, norms, attention, mixer),
            num_new=0 if index else self.rule.num,
            head=HyperHead(find_factors(top, HEADS, "", "hc_head"), self.rule) if is_last else None,
        )
        return layer if all(self.have_index) else ChoosingLayer(layer)

    def order_index(self) -> torch.Tensor:
        """Return the order of the numbers of a key in the index, in which the last ones are rotated."""
        return torch.arange(self.index.width).roll(self.rope.width)


def find_gate(weights: Weights, part: str = "") -> Weights:
    """Return weights with the gate as ``gate_proj``, which checkpoints may call ``linear_gate``."""
    names = (f"{part}{name}linear_gate.weight" for name in ("", "shared_experts."))
    return weights.rename(gate_proj="linear_gate") if any(map(weights.has, names)) else weights


def find_factors(weights: Weights, places: Sequence[str], name: str, prefix: str) -> Weights:
    """Return the weights of `HyperFactors`, from the first place where a checkpoint has them."""
    found = next((place for place in places if weights.has(f"{place.format(name)}.{prefix}_fn")), places[-1])
    return name_factors(weights.within(found.format(name)), prefix)
