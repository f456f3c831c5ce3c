"""Qwen3-Next: gated delta nets, every few layers gated attention, experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from parallax_backend_torch.config import FULL, Config
from parallax_backend_torch.decoder_layer import PlainLayer, WholeLayer, build_plain
from parallax_backend_torch.delta_net import DeltaNet, NetSizes
from parallax_backend_torch.experts import Experts, SoftmaxRoute, build_experts, count_experts, has_experts
from parallax_backend_torch.heads import Attention, Look, read_heads
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.mlp import GatedMlp, Mixer
from parallax_backend_torch.model import check_choice, read_shape
from parallax_backend_torch.rope import make_rope
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights

LINEAR = "linear_attention"


@dataclass(frozen=True, eq=False, slots=True)
class SharedExpert:
    """The shared expert, which runs for every token, weighted by its gate."""

    mlp: GatedMlp
    gate: Packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: [tokens, width]."""
        return self.mlp(x, None) * self.gate.apply(x).sigmoid()


class Qwen3Next:
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        check_choice(config, "hidden_act", "silu")
        self.shape = replace(read_shape(config), norm_offset=1.0)
        self._config = config
        self._heads = read_heads(config)
        self._rope = make_rope(config, self._heads.width)
        period = config.count("full_attention_interval", default=4)
        kinds = [LINEAR if (index + 1) % period else FULL for index in range(self.shape.num_layers)]
        self._kinds = config.list_words("layer_types", (FULL, LINEAR), kinds)
        self._sizes = NetSizes(
            num_keys=config.count("linear_num_key_heads"),
            num_values=config.count("linear_num_value_heads"),
            key=config.count("linear_key_head_dim"),
            value=config.count("linear_value_head_dim"),
            kernel=config.count("linear_conv_kernel_dim"),
        )

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, or a state."""
        return self._heads.keep() if self._kinds[index] == FULL else self._sizes.keep()

    def build_attention(self, index: int, weights: Weights) -> Attention | DeltaNet:
        """Build attention with a gate on its output, or a delta net."""
        if self._kinds[index] != FULL:
            return DeltaNet(weights.within("linear_attn"), self._sizes, self.shape.eps)
        look = Look(rope=self._rope, eps=self.shape.eps, norm_offset=1.0, is_gated=True)
        return Attention(weights.within("self_attn"), self._heads, look)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in some layers an MLP."""
        config = self._config
        if not has_experts(config, index):
            return GatedMlp(weights)
        route = SoftmaxRoute(
            config.count("num_experts_per_tok"), is_normalised=config.flag("norm_topk_prob", default=True)
        )
        gate = weights.make_linear("shared_expert_gate", purpose="router")
        shared: Callable[[torch.Tensor], torch.Tensor] = SharedExpert(GatedMlp(weights.within("shared_expert")), gate)
        router = weights.make_linear("gate", purpose="router")
        return Experts(router, build_experts(weights, count_experts(config)), route, shared)

    def build_layer(self, index: int, weights: Weights) -> PlainLayer | WholeLayer:
        """Build a layer."""
        attention, mixer = self.build_attention(index, weights), self.build_mixer(index, weights.within("mlp"))
        return build_plain(weights, (self.shape.eps, self.shape.norm_offset), attention, mixer)
