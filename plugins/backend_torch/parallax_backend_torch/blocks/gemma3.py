"""Gemma 3, the text model: windows, and norms before and after each part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.heads import Attention, Look, read_heads
from parallax_backend_torch.mlp import GatedMlp
from parallax_backend_torch.model import check_choice, read_shape, read_windows
from parallax_backend_torch.rope import Rope, make_rope
from parallax_backend_torch.step import LayerCache, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights
from parallax_core.api import Unsupported

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
PERIOD = 6
"""Every PERIOD-th layer has full attention if config.json does not give the kinds of layers."""


@dataclass(frozen=True, eq=False, slots=True)
class Gemma3Layer:
    """See `parallax_backend_torch.model.Layer`."""

    attention: Attention
    mixer: GatedMlp
    norms: tuple[Norm, ...]
    """In the order of `NORMS`."""
    is_steady: ClassVar[bool] = True

    def __call__(self, hidden: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the hidden states after the layer."""
        before, after, before_mixer, after_mixer = self.norms
        hidden = hidden + after(self.attention(before(hidden), None, step, cache))
        return hidden + after_mixer(self.mixer(before_mixer(hidden), None))


class Gemma3:
    """See `parallax_backend_torch.model.Model`."""

    def __init__(self, config: Config) -> None:
        check_choice(config, "hidden_activation", "gelu_pytorch_tanh")
        if config.flag("use_bidirectional_attention", default=False):
            raise Unsupported("this Gemma attends to later tokens too", "choose a model that generates text")
        shape = read_shape(config, is_tied=True)
        cap = config.number("final_logit_softcapping", 0.0)
        self.shape = replace(shape, norm_offset=1.0, embed_scale=shape.hidden_size**0.5, soft_cap=cap)
        self._heads = read_heads(config)
        period = config.count("sliding_window_pattern", "_sliding_window_pattern", default=PERIOD)
        kinds = [SLIDING if (index + 1) % period else FULL for index in range(shape.num_layers)]
        self._windows = read_windows(config, kinds)
        self._ropes = make_ropes(config, self._heads.width)
        self._scale = config.count("query_pre_attn_scalar", default=256) ** -0.5
        self._soft_cap = config.number("attn_logit_softcapping", 0.0)

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values."""
        return self._heads.keep(self._windows[index])

    def build_attention(self, index: int, weights: Weights) -> Attention:
        """Build attention, with norms of queries and keys, and the rope of the layer's kind."""
        window = self._windows[index]
        look = Look(
            rope=self._ropes[SLIDING if window else FULL],
            window=window,
            scale=self._scale,
            soft_cap=self._soft_cap,
            eps=self.shape.eps,
            norm_offset=1.0,
        )
        return Attention(weights, self._heads, look)

    def build_layer(self, index: int, weights: Weights) -> Gemma3Layer:
        """Build a layer."""
        attention = self.build_attention(index, weights.within("self_attn"))
        norms = tuple(Norm(weights.read_vector(f"{name}.weight"), self.shape.eps, 1.0) for name in NORMS)
        return Gemma3Layer(attention, GatedMlp(weights.within("mlp"), "gelu_tanh"), norms)


def make_ropes(config: Config, width: int) -> dict[str, Rope]:
    """Return the rope of each kind of layer; older files have a separate base for layers with sliding windows."""
    full = make_rope(config, width, FULL)
    if not config.has("rope_local_base_freq"):
        return {FULL: full, SLIDING: make_rope(config, width, SLIDING)}
    local = Config({"rope_theta": config.number("rope_local_base_freq")})
    return {FULL: full, SLIDING: make_rope(local, width)}
