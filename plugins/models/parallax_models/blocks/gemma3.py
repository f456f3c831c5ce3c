"""Gemma 2 and 3, the text models: windows, and norms before and after each part."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from parallax_backend_torch.api import (
    FULL,
    SLIDING,
    Config,
    GatedMlp,
    Layer,
    Rope,
    Weights,
    build_normed,
    check_choice,
    make_rope,
)
from parallax_core.api import Unsupported
from parallax_models.blocks.decoder import Decoder

CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


class Gemma2(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    activation: ClassVar[str] = "gelu_pytorch_tanh"
    caps: ClassVar[tuple[float, float]] = 50.0, 30.0
    """The caps of scores and of logits if config.json does not say."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        check_choice(self.config, "hidden_activation", self.activation)
        if self.config.flag("use_bidirectional_attention", default=False):
            raise Unsupported("this Gemma attends to later tokens too", "choose a model that generates text")
        soft_cap, final_cap = (read_cap(self.config, *each) for each in zip(CAPS, self.caps, strict=True))
        scale = self.shape.hidden_size**0.5
        self.shape = replace(self.shape, norm_offset=1.0, embed_scale=scale, soft_cap=final_cap)
        scale = self.config.count("query_pre_attn_scalar", default=256) ** -0.5
        self.look = replace(self.look, norm_offset=1.0, scale=scale, soft_cap=soft_cap)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        mlp = GatedMlp(weights.within("mlp"), "gelu_tanh")
        return build_normed(weights, (self.shape.eps, 1.0), NORMS, self.build_attention(index, weights), mlp)


class Gemma3(Gemma2):
    """See `parallax_backend_torch.api.Model`."""

    caps: ClassVar[tuple[float, float]] = 0.0, 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.ropes = make_ropes(self.config, self.heads.width)


def read_cap(config: Config, name: str, default: float) -> float:
    """Return a cap, 0 for none; null means none, too."""
    return config.number(name, 0.0) if name in config.raw else default


def make_ropes(config: Config, width: int) -> dict[str, Rope]:
    """Return the rope of each kind of layer; older files have a separate base for layers with sliding windows."""
    full = make_rope(config, width, FULL)
    if not config.has("rope_local_base_freq"):
        return {FULL: full, SLIDING: make_rope(config, width, SLIDING)}
    local = Config({"rope_theta": config.number("rope_local_base_freq")})
    return {FULL: full, SLIDING: make_rope(local, width)}
