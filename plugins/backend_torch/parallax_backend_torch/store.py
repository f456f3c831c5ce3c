"""The memory behind the page pools. Pages that are not in use yet take none: the system gives it on the first write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parallax_core.api import Copy, PoolInfo, PoolKind

PoolKey = tuple[PoolKind, int]


@dataclass(frozen=True, slots=True)
class Kept:
    """The cache of one layer."""

    kind: PoolKind
    shapes: tuple[tuple[int, ...], ...]
    """Of each tensor, for each token, or of a state, for each sequence."""
    window: int = 0
    """For a window: the number of tokens that a token attends to, itself included."""
    dtype: torch.dtype = torch.float32

    @property
    def pool(self) -> PoolKey:
        """Layers of one key share a pool."""
        return self.kind, self.window

    @property
    def num_bytes(self) -> int:
        """Bytes for each token, or of a state, for each sequence."""
        return sum(map(math.prod, self.shapes)) * int(self.dtype.itemsize)


def list_sizes(layers: Sequence[Kept]) -> dict[PoolKey, int]:
    """Return the bytes that a token, or a state, takes in each pool."""
    sizes: dict[PoolKey, int] = {}
    for kept in layers:
        sizes[kept.pool] = sizes.get(kept.pool, 0) + kept.num_bytes
    return sizes


class Store:
    """The tensors of all layers of a stage.

    Args:
        layers: what each remembers.
        infos: the pools.
        device: where to.
    """

    def __init__(self, layers: Sequence[Kept], infos: Sequence[PoolInfo], device: torch.device) -> None:
        self.device = device
        numbers = {(info.kind, info.window): number for number, info in enumerate(infos)}
        self.pools = [numbers[kept.pool] for kept in layers]
        """The pool of each layer."""
        self._sizes = [1 if info.kind == "state" else info.page_size for info in infos]
        # On a device one page more, for rows that are only there to fill a step: see `replay`.
        spare = [info.kind != "state" and device.type != "cpu" for info in infos]
        slots = [(info.num_pages + more) * size for info, size, more in zip(infos, self._sizes, spare, strict=True)]
        self.tensors = [
            tuple(
                torch.empty((slots[number], *shape), dtype=kept.dtype, device=device)  # what is not written is not read
                for shape in kept.shapes
            )
            for kept, number in zip(layers, self.pools, strict=True)
        ]
        """Of each layer, each of shape [slots, ...]: slot = page * page size + offset."""

    def copy(self, copies: Sequence[Sequence[Copy]]) -> None:
        """Make the copies of each pool: whole pages, as what is beyond the slots in use is never read."""
        for number, part in enumerate(copies):
            if part:
                sources, targets = (torch.tensor([getattr(copy, end) for copy in part]) for end in ("src", "dst"))
                self._copy_pages(number, sources, targets)

    def _copy_pages(self, number: int, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for tensors, pool in zip(self.tensors, self.pools, strict=True):
            if pool == number:
                for tensor in tensors:
                    pages = tensor.unflatten(0, (-1, self._sizes[number]))
                    pages[targets.to(tensor.device)] = pages[sources.to(tensor.device)]
