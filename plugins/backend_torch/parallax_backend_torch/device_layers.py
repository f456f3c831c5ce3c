"""CUDA layers with norms, gates and sums fused into their products, for steps of a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from parallax_backend_torch.adapters import find_table, strip
from parallax_backend_torch.device_kernels import DEVICE_KERNELS
from parallax_backend_torch.heads import Attention
from parallax_backend_torch.layer_factory import DeviceLinear
from parallax_backend_torch.mlp import GatedMlp
from parallax_backend_torch.step import Carried, LayerCache, Step

if TYPE_CHECKING:
    from parallax_backend_torch.decoder_layer import PlainLayer
    from parallax_backend_torch.kernels.linear import Packed
    from parallax_backend_torch.model import Layer
    from parallax_backend_torch.triton_products import Product


@dataclass(frozen=True, eq=False, slots=True)
class Products:
    """The matrices of a layer."""

    into: Product
    back: Product
    up: Product
    down: Product


class DeviceLayers:
    """Consecutive layers with the interface of `decoder_layer.Joined`.

    Args:
        layers: layers of which `find_kernels` says that they fit.
        kernels: the kernels of their device.
    """

    def __init__(self, layers: Sequence[PlainLayer], kernels: ModuleType) -> None:
        self._layers, self._kernels = layers, kernels
        self._adapters = find_table(*_list_wrapped(layers[0]))
        self._products = [
            Products(*(matrix.few_rows for matrix in _list_matrices(layer) if matrix.few_rows)) for layer in layers
        ]

    def __call__(self, carried: Carried, step: Step, caches: Sequence[LayerCache]) -> Carried:
        """Return the planes after the last layer; ``caches`` has one for each."""
        has_adapters = self._adapters is not None and self._adapters.batch is not None
        if 0 < len(carried.hidden) <= self._kernels.MOST_ROWS and not has_adapters:
            return carried.replace(self._run_few(carried.hidden, step, caches))
        for layer, cache in zip(self._layers, caches, strict=True):
            carried = layer(carried, step, cache)
        return carried

    def _run_few(self, hidden: torch.Tensor, step: Step, caches: Sequence[LayerCache]) -> torch.Tensor:
        stream = self._kernels.begin_stream(hidden, self._layers[0].attention_norm)
        following = [*(layer.attention_norm for layer in self._layers[1:]), None]
        for layer, products, cache, norm in zip(self._layers, self._products, caches, following, strict=True):
            attention, mixer = layer.attention, layer.mixer
            assert isinstance(attention, Attention)
            assert isinstance(mixer, GatedMlp)
            found = attention.look(products.into.apply(stream), step, cache)
            stream = products.back.extend(found, stream.hidden, layer.mixer_norm)
            gated = products.up.apply_gated(stream, mixer.gate)
            if norm is None:
                hidden = products.down.apply(gated, stream.hidden)
            else:
                stream = products.down.extend(gated, stream.hidden, norm)
        return hidden


def find_kernels(layer: Layer) -> ModuleType | None:
    """Return the kernels that can run a layer as one of `DeviceLayers`, or None."""
    matrices = _list_matrices(layer)
    kernels = DEVICE_KERNELS.find(matrices[0].weight.device) if matrices else None
    return kernels if kernels and all(matrix.few_rows for matrix in matrices) else None


def _list_matrices(layer: Layer) -> list[DeviceLinear]:
    """Return the matrices of a layer, in the order of `Products`; empty if it has others."""
    matrices = [strip(each) for each in _list_wrapped(layer)]
    found = [matrix for matrix in matrices if isinstance(matrix, DeviceLinear)]
    return found if len(found) == len(matrices) else []


def _list_wrapped(layer: Layer) -> list[Packed]:
    """Return the same with what adds adapters to them."""
    attention, mixer = getattr(layer, "attention", None), getattr(layer, "mixer", None)
    if not isinstance(attention, Attention) or not attention.is_plain or not isinstance(mixer, GatedMlp):
        return []
    return [attention.into, attention.back, mixer.into, mixer.back]
