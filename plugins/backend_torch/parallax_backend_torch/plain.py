"""The layer most families are made of: in one call of the kernels where they can, part by part elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.heads import Attention
from parallax_backend_torch.kernels.attention import Pool
from parallax_backend_torch.kernels.layer import FusedLayer, Place, Recipe, Scaling, fuse_layer
from parallax_backend_torch.mlp import GatedMlp, Looker, Mixer
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.step import Places, Spot, Step
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, eq=False, slots=True)
class PlainLayer:
    """Attention and a mixer, each behind a norm, and each added to what was before."""

    attention_norm: Norm
    attention: Looker
    mixer_norm: Norm
    mixer: Mixer
    is_steady: ClassVar[bool] = True

    def __call__(self, hidden: torch.Tensor, step: Step, spot: Spot) -> torch.Tensor:
        """Return the hidden states after the layer."""
        hidden = self.attention(self.attention_norm(hidden), hidden, step, spot)
        return self.mixer(self.mixer_norm(hidden), hidden)


@dataclass(frozen=True, eq=False, slots=True)
class WholeLayer:
    """The same in one call."""

    fused: FusedLayer
    rope: Rope

    def __call__(self, hidden: torch.Tensor, step: Step, spot: Spot) -> torch.Tensor:
        """Return the hidden states after the layer."""
        places = spot.places
        assert isinstance(places, Places)
        place = Place(Pool(*spot.kept), places.rows, places.slots, *step.find_angles(self.rope))
        return self.fused.run(hidden, place)


def build_plain(
    weights: Weights, norms: tuple[float, float], attention: Looker, mixer: Mixer
) -> PlainLayer | WholeLayer:
    """Return a layer of these two, with the norms ``input_layernorm`` and ``post_attention_layernorm``.

    Args:
        weights: of the layer.
        norms: their eps, and their offset; see `Norm`.
        attention: comes first.
        mixer: comes second.
    """
    first, second = (
        Norm(weights.read_vector(f"{name}.weight"), *norms) for name in ("input_layernorm", "post_attention_layernorm")
    )
    plain = PlainLayer(first, attention, second, mixer)
    return _fuse_layer(plain, attention, mixer) or plain


def _fuse_layer(plain: PlainLayer, attention: Looker, mixer: Mixer) -> WholeLayer | None:
    """Return the layer as one call, if the kernels can run it so."""
    if not isinstance(attention, Attention) or attention.gates or not isinstance(mixer, GatedMlp):
        return None
    query_norm, key_norm = (_scale(norm) for norm in attention.norms) if attention.norms else (None, None)
    recipe = Recipe(
        attention_norm=_scale(plain.attention_norm),
        into=attention.into,
        back=attention.back,
        mixer_norm=_scale(plain.mixer_norm),
        up=mixer.into,
        down=mixer.back,
        rule=attention.rule,
        query_norm=query_norm,
        key_norm=key_norm,
        gate=mixer.gate,
    )
    fused = fuse_layer(recipe, attention.heads.queries, attention.heads.width)
    return WholeLayer(fused, attention.rope) if fused else None


def _scale(norm: Norm) -> Scaling:
    return Scaling(norm.weight, norm.eps, norm.offset)
