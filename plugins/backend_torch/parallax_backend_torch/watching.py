"""Shows the inputs of the matrices of a stage, as what prepares a model for fewer bits needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from parallax_backend_torch.adapters import AdaptedLinear, AdapterBatch, ModulePart, adding
from parallax_backend_torch.stage import TorchStage
from parallax_core.api import Stage

__all__ = ["ModulePart", "Watcher", "watching"]

OPTIONS: Mapping[str, str] = {"weights": "float32", "kernels": "off"}
"""Options of a stage that can be watched: the library would compute several matrices in one call."""


class Watcher(Protocol):
    """Sees what each matrix of a layer is given; experts are not among them."""

    def see(self, parts: Sequence[ModulePart], x: torch.Tensor, out: torch.Tensor) -> None:
        """See inputs [rows, in] and outputs [rows, out], which may be changed, of a matrix.

        Args:
            parts: the modules whose matrices it is, stacked by rows, such as ``layers.3.self_attn.q_proj``.
            x: the inputs.
            out: the outputs.
        """


class _Watch:
    """Stands in for the adapters of a step."""

    packed = None
    has_experts = False

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def add(self, linear: AdaptedLinear, x: torch.Tensor, out: torch.Tensor) -> None:
        self._watcher.see(linear.parts, x, out)


@contextmanager
def watching(stage: Stage, watcher: Watcher) -> Iterator[None]:
    """Show the steps of a stage that was opened with `OPTIONS`."""
    assert isinstance(stage, TorchStage)
    assert stage.adapters is not None, "layers on the code of transformers take no adapters"
    with adding(stage.adapters, cast("AdapterBatch", _Watch(watcher))):
        yield
