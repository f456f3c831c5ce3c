"""The decoder layer of most families: several layers per kernel call if possible, else by parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType
from typing import ClassVar

import torch

from parallax_backend_torch.adapters import AdapterTable, find_table, number_matrix, strip
from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.device_layers import DeviceLayers, find_kernels
from parallax_backend_torch.heads import Attention
from parallax_backend_torch.kernels.attention import Pool
from parallax_backend_torch.kernels.layer import FusedLayer, FusedLayers, Recipe, Scaling, StepPositions, fuse_layer
from parallax_backend_torch.mlp import GatedMlp, Looker, Mixer
from parallax_backend_torch.model import Layer
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.step import Carried, LayerCache, SlotMapping, Step
from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, eq=False, slots=True)
class PlainLayer:
    """Attention and a mixer, each after a norm, and each added to the residual."""

    attention_norm: Norm
    attention: Looker
    mixer_norm: Norm
    mixer: Mixer
    is_steady: ClassVar[bool] = True

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        hidden = self.attention(self.attention_norm(carried.hidden), carried.hidden, step, cache)
        return carried.replace(self.mixer(self.mixer_norm(hidden), hidden))


@dataclass(frozen=True, eq=False, slots=True)
class NormedLayer:
    """Attention and a mixer, each with a norm before it or after it, or both, and each scaled and added."""

    attention: Looker
    mixer: Mixer
    norms: tuple[Norm | None, ...]
    """Before attention and after it, before the mixer and after it."""
    scale: float = 1.0
    """The factor of what is added to the residual."""
    is_steady: ClassVar[bool] = True

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        hidden = carried.hidden
        before, after, before_mixer, after_mixer = self.norms
        found = self.attention(before(hidden) if before else hidden, None, step, cache)
        hidden = self._add(hidden, after(found) if after else found)
        found = self.mixer(before_mixer(hidden) if before_mixer else hidden, None)
        return carried.replace(self._add(hidden, after_mixer(found) if after_mixer else found))

    def _add(self, hidden: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return hidden + found if self.scale == 1 else torch.add(hidden, found, alpha=self.scale)


@dataclass(frozen=True, eq=False, slots=True)
class WholeLayer:
    """A `PlainLayer` in one call of the kernels."""

    fused: FusedLayer
    rope: Rope
    adapters: AdapterTable | None
    """The adapters of its matrices, if they take any."""

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        return Joined([self])(carried, step, [cache])


class Joined:
    """Several layers in one call of the kernels; all have the same slots and the same rope."""

    def __init__(self, layers: Sequence[WholeLayer]) -> None:
        self._fused = FusedLayers([layer.fused for layer in layers])
        self._rope, self._adapters = layers[0].rope, layers[0].adapters

    def __call__(self, carried: Carried, step: Step, caches: Sequence[LayerCache]) -> Carried:
        """Return the planes after the last layer; ``caches`` has one for each."""
        places = caches[0].places
        assert isinstance(places, SlotMapping)
        place = StepPositions(places.rows, places.slots, *step.find_angles(self._rope))
        batch = self._adapters.batch if self._adapters else None
        pools = [Pool(*cache.kept) for cache in caches]
        return carried.replace(self._fused.run(carried.hidden, pools, place, batch.packed if batch else None))


@dataclass(frozen=True, eq=False, slots=True)
class Alone:
    """A single layer, with the interface of `Joined`."""

    layer: Layer

    def __call__(self, carried: Carried, step: Step, caches: Sequence[LayerCache]) -> Carried:
        """Return the planes after the layer."""
        return self.layer(carried, step, caches[0])


def join_layers(
    layers: Sequence[Layer], caches: Sequence[LayerCache]
) -> list[tuple[slice, Joined | DeviceLayers | Alone]]:
    """Return the layers of a stage, joined to as few calls as possible, each with the slice of its caches.

    Args:
        layers: the layers in order.
        caches: those of any step; layers that share places in one step do so in every step.
    """

    def find_key(index: int) -> object:
        layer = layers[index]
        if isinstance(layer, WholeLayer):
            return layer.rope, id(caches[index].places)
        return (isinstance(layer, PlainLayer) and find_kernels(layer)) or index

    joined: list[tuple[slice, Joined | DeviceLayers | Alone]] = []
    for key, indices in groupby(range(len(layers)), find_key):
        first, *others = indices
        part = slice(first, first + 1 + len(others))
        whole = [layer for layer in layers[part] if isinstance(layer, WholeLayer)]
        plain = [layer for layer in layers[part] if isinstance(layer, PlainLayer)]
        if isinstance(key, ModuleType):
            joined.append((part, DeviceLayers(plain, key)))
        else:
            joined.append((part, Joined(whole) if whole else Alone(layers[first])))
    return joined


def build_plain(
    weights: Weights, norms: tuple[float, float], attention: Looker, mixer: Mixer
) -> PlainLayer | WholeLayer:
    """Return a layer of attention and mixer, with the norms ``input_layernorm`` and ``post_attention_layernorm``.

    Args:
        weights: the weights of the layer.
        norms: the eps and the offset of the norms; see `Norm`.
        attention: the first part.
        mixer: the second part.
    """
    first, second = (
        Norm(weights.read_vector(f"{name}.weight"), *norms) for name in ("input_layernorm", "post_attention_layernorm")
    )
    plain = PlainLayer(first, attention, second, mixer)
    return _fuse_layer(plain, attention, mixer) or plain


def build_normed(
    weights: Weights, norms: tuple[float, float], names: Sequence[str], attention: Looker, mixer: Mixer
) -> NormedLayer:
    """Return a layer with other norms than those of most families.

    Args:
        weights: the weights of the layer.
        norms: the eps and the offset of the norms; see `Norm`.
        names: the names of the norms before and after attention, and before and after the mixer; empty: no norm.
        attention: the first part.
        mixer: the second part.
    """
    made = (Norm(weights.read_vector(f"{name}.weight"), *norms) if name else None for name in names)
    return NormedLayer(attention, mixer, tuple(made))


def _fuse_layer(plain: PlainLayer, attention: Looker, mixer: Mixer) -> WholeLayer | None:
    """Return the layer as one call, or None if the kernels cannot run it."""
    if not isinstance(attention, Attention) or not attention.is_plain or not isinstance(mixer, GatedMlp):
        return None
    query_norm, key_norm = (_scale(norm) for norm in attention.norms) if attention.norms else (None, None)
    into, back, up, down = matrices = attention.into, attention.back, mixer.into, mixer.back
    recipe = Recipe(
        attention_norm=_scale(plain.attention_norm),
        into=strip(into),
        back=strip(back),
        mixer_norm=_scale(plain.mixer_norm),
        up=strip(up),
        down=strip(down),
        rule=attention.rule,
        query_norm=query_norm,
        key_norm=key_norm,
        gate=mixer.gate,
        adapted=(number_matrix(into), number_matrix(back), number_matrix(up), number_matrix(down)),
    )
    fused = fuse_layer(recipe, attention.heads.queries, attention.heads.width)
    return WholeLayer(fused, attention.rope, find_table(*matrices)) if fused and attention.rope else None


def _scale(norm: Norm) -> Scaling:
    return Scaling(norm.weight, norm.eps, norm.offset)
