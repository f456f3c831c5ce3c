"""Keeps a loaded model from which networks of some of its layers are cut, all with the same weights."""

from __future__ import annotations

from parallax_backend_mlx.model_slice import ModelSlice
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runner_choice import TriedNetwork, try_network
from parallax_backend_mlx.runtime import Module, flatten_tree, mx
from parallax_backend_mlx.settings import Kernel
from parallax_core.api import LayerRange


class LoadedModel:
    """Loaded layers, run by networks with modules of their own. Belongs to the thread that loaded them.

    Args:
        model_slice: the layers; not changed from now on.
        kernel: see `MlxSettings`.
    """

    def __init__(self, model_slice: ModelSlice, kernel: Kernel = "auto") -> None:
        self._slice, self._kernel = model_slice, kernel
        self._sizes = {name: array.nbytes for name, array in _list_parameters(model_slice.model)}
        self._networks: dict[LayerRange, TriedNetwork] = {}

    @property
    def layers(self) -> LayerRange:
        """The layers."""
        return self._slice.layers

    def find_network(self, layers: LayerRange) -> TriedNetwork:
        """Return a network of some of the layers.

        Stages of the same layers share a network, which keeps nothing of their sequences.

        Raises:
            Unsupported: if these layers cannot be run separately.
        """
        if layers not in self._networks:
            part = self._slice.cut(layers)
            network = Network(part)
            network.install_pick()
            weight_bytes = sum(size for name, size in self._sizes.items() if part.owns(name))
            self._networks[layers] = try_network(network, weight_bytes, self._kernel)
        return self._networks[layers]


def _list_parameters(model: Module) -> list[tuple[str, mx.array]]:
    return flatten_tree(model.parameters())  # type: ignore[no-untyped-call]
