"""DeepSeek-V3 and R1: latent attention, shared and routed experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_backend_torch.config import Config
from parallax_backend_torch.decoder_layer import PlainLayer, WholeLayer, build_plain
from parallax_backend_torch.experts import Experts, build_experts
from parallax_backend_torch.latent import LatentAttention, LatentSizes
from parallax_backend_torch.mlp import GatedMlp, Mixer
from parallax_backend_torch.model import check_choice, read_shape
from parallax_backend_torch.rope import make_rope, read_rope, scale_magnitude
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights
from parallax_core.api import Unsupported


@dataclass(frozen=True, eq=False, slots=True)
class GroupRoute:
    """Takes the best groups of experts, and of these the best experts (arXiv 2412.19437, section 2.1.2)."""

    correction: torch.Tensor
    """Added to the scores to choose experts, but not to their shares: float32 of shape [experts]."""
    num_chosen: int
    num_groups: int
    num_chosen_groups: int
    is_normalised: bool
    scale: float
    """The factor of the experts' shares."""

    def __call__(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose."""
        shares = scores.sigmoid()
        groups = (shares + self.correction).unflatten(1, (self.num_groups, -1))
        ranks = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        kept = torch.zeros_like(ranks, dtype=torch.bool)
        kept.scatter_(1, ranks.topk(self.num_chosen_groups, dim=-1).indices, value=True)
        chosen = groups.masked_fill(~kept[..., None], -torch.inf).flatten(1).topk(self.num_chosen, dim=-1).indices
        found = shares.gather(1, chosen)
        if self.is_normalised:
            found = found / (found.sum(-1, keepdim=True) + 1e-20)
        return chosen, found * self.scale


class DeepseekV3:
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        check_choice(config, "hidden_act", "silu")
        if not config.flag("rope_interleave", default=True):
            raise Unsupported("'rope_interleave' in config.json is false", "try another backend")
        self.shape = read_shape(config)
        self._config = config
        self._sizes = LatentSizes(
            num_heads=config.count("num_attention_heads"),
            latent=config.count("kv_lora_rank"),
            plain=config.count("qk_nope_head_dim"),
            rotated=config.count("qk_rope_head_dim"),
            value=config.count("v_head_dim"),
        )
        self._rope = make_rope(config, self._sizes.rotated)
        self._scale = find_scale(config, self._sizes)
        self._first_sparse = config.size("first_k_dense_replace", 0)

    def keep_layer(self, index: int) -> CacheSpec:  # noqa: ARG002 -- every layer is alike
        """Return the cache of a layer: a latent, and the part of a key with rope."""
        return self._sizes.keep()

    def build_attention(self, weights: Weights) -> LatentAttention:
        """Build attention."""
        return LatentAttention(weights, self._sizes, self._rope, self._scale, self.shape.eps)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts, or in the first layers an MLP."""
        if index < self._first_sparse:
            return GatedMlp(weights)
        config = self._config
        route = GroupRoute(
            correction=weights.read_vector("gate.e_score_correction_bias"),
            num_chosen=config.count("num_experts_per_tok"),
            num_groups=config.count("n_group", default=1),
            num_chosen_groups=config.count("topk_group", default=1),
            is_normalised=config.flag("norm_topk_prob", default=True),
            scale=config.number("routed_scaling_factor", 1.0),
        )
        shared = GatedMlp(weights.within("shared_experts"))
        router = weights.make_linear("gate", purpose="router")
        experts = build_experts(weights, config.count("n_routed_experts", "num_local_experts"))
        return Experts(router, experts, route, lambda x: shared(x, None))

    def build_layer(self, index: int, weights: Weights) -> PlainLayer | WholeLayer:
        """Build a layer."""
        attention = self.build_attention(weights.within("self_attn"))
        return build_plain(
            weights, (self.shape.eps, self.shape.norm_offset), attention, self.build_mixer(index, weights.within("mlp"))
        )


def find_scale(config: Config, sizes: LatentSizes) -> float:
    """Return the factor of the scores; YaRN changes the temperature here instead of in cosines and sines."""
    scale, settings = float((sizes.plain + sizes.rotated) ** -0.5), read_rope(config)
    if settings.get("rope_type", "default") == "default" or not settings.get("mscale_all_dim"):
        return scale
    return scale * scale_magnitude(float(settings["factor"]), float(settings["mscale_all_dim"])) ** 2
