"""Nemotron-H and Nemotron 3: each layer is Mamba 2, attention without positions, an MLP or experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallax_backend_torch.api import (
    CacheSpec,
    Carried,
    Config,
    Experts,
    GroupRoute,
    Layer,
    LayerCache,
    Looker,
    Mamba,
    Mixer,
    Norm,
    SquaredMlp,
    Step,
    Weights,
    check_choice,
)
from parallax_models.blocks.decoder import Decoder
from parallax_models.blocks.granite import size_mamba
from parallax_models.nemotron_h import ATTENTION, MAMBA, MLP, read_kinds, read_widths


@dataclass(frozen=True, eq=False, slots=True)
class LookerLayer:
    """What combines tokens, after a norm, and added to the residual."""

    norm: Norm
    part: Looker

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        return carried.replace(self.part(self.norm(carried.hidden), carried.hidden, step, cache))


@dataclass(frozen=True, eq=False, slots=True)
class MixerLayer:
    """What works on each token separately, after a norm, and added to the residual."""

    norm: Norm
    part: Mixer

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:  # noqa: ARG002 -- of attention
        """Return the planes after the layer."""
        return carried.replace(self.part(self.norm(carried.hidden), carried.hidden))


class NemotronH(Decoder):
    """See `parallax_backend_torch.api.Model`.

    Steps of time are limited from below as ``time_step_limit`` says, as in the code of NVIDIA and mlx-lm. That of
    transformers limits those of prompts, but not those of single tokens, to ``time_step_min``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kinds = read_kinds(self.config)
        check_choice(self.config, "mlp_hidden_act", "relu2")
        check_choice(self.config, "mamba_hidden_act", "silu")
        self.shape = replace(self.shape, embedding="embeddings", norm="norm_f")
        self.look = replace(self.look, rope=None)
        self.sizes = size_mamba(read_widths(self.config))

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, a state, or nothing."""
        kind = self.kinds[index]
        if kind == ATTENTION:
            return self.heads.keep()
        return self.sizes.keep() if kind == MAMBA else CacheSpec.nothing()

    def build_attention(self, index: int, weights: Weights) -> Looker:
        """Build attention, or Mamba 2."""
        if self.kinds[index] == ATTENTION:
            return super().build_attention(index, weights.rename(self_attn="mixer"))
        least, *_ = self.config.raw.get("time_step_limit") or [0.0]
        return Mamba(weights.within("mixer"), self.sizes, self.shape.eps, float(least))

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and an MLP that every token meets, or an MLP."""
        weights = weights.within("mixer")
        if self.kinds[index] == MLP:
            return SquaredMlp(weights)
        num = self.config.count("n_routed_experts")
        latent = None
        if self.config.has("moe_latent_size"):
            latent = weights.make_linear("fc1_latent_proj"), weights.make_linear("fc2_latent_proj")
        return Experts(
            weights.make_linear("gate", purpose="router"),
            [SquaredMlp(weights.within(f"experts.{number}")) for number in range(num)],
            GroupRoute.read(self.config, weights),
            SquaredMlp(weights.within("shared_experts")),
            latent,
        )

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer of one part."""
        norm = Norm.read(weights, "norm", self.shape.eps)
        if self.kinds[index] in (MAMBA, ATTENTION):
            return LookerLayer(norm, self.build_attention(index, weights))
        return MixerLayer(norm, self.build_mixer(index, weights))
