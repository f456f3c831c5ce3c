"""The memory behind the page pools; the system allocates unused pages on their first write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from parallax_core.api import Copy, PoolInfo, PoolKind, Unsupported

PoolKey = tuple[PoolKind, int]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Describes the cache of one layer."""

    kind: PoolKind
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each tensor, per token, or per sequence for a state."""
    window: int = 0
    """The number of tokens that a token attends to, including itself, if the kind is a window."""
    dtype: torch.dtype = torch.float32
    source: int | None = None
    """The earlier layer of the model whose cache, of the same kind and shapes, is read in place of one of its own."""

    @classmethod
    def nothing(cls) -> CacheSpec:
        """Return the cache of a layer that keeps nothing of a sequence."""
        return cls("full", ())

    @property
    def pool(self) -> PoolKey:
        """The key of the pool; layers with the same key share a pool."""
        return self.kind, self.window

    @property
    def tensors(self) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """The shape, per token or sequence, and dtype of each tensor; int8 has a scale for each head of each tensor."""
        kept = tuple((shape, self.dtype) for shape in self.shapes)
        if self.dtype != torch.int8:
            return kept
        return kept + tuple((shape[:-1], torch.bfloat16) for shape in self.shapes)

    @property
    def num_bytes(self) -> int:
        """The bytes per token, or per sequence for a state; 0 for the cache of another layer."""
        if self.source is not None:
            return 0
        return sum(math.prod(shape) * int(dtype.itemsize) for shape, dtype in self.tensors)


def keep_as(kept: CacheSpec, dtype: torch.dtype) -> CacheSpec:
    """Return the cache of a layer with keys and values of a dtype; a state stays as it is.

    Raises:
        Unsupported: if they would be in int8, and are not those of heads.
    """
    if kept.kind == "state":
        return kept
    if dtype == torch.int8 and (kept.kind == "latent" or len(kept.shapes) > len(("keys", "values"))):
        message = "kv_cache_dtype is int8, and this model caches latents or an index, which 8 bits change too much"
        raise Unsupported(message, "set PARALLAX_TORCH__KV_CACHE_DTYPE=auto")
    return replace(kept, dtype=dtype)


def list_sizes(layers: Sequence[CacheSpec]) -> dict[PoolKey, int]:
    """Return the bytes of a token, or of a state, in each pool."""
    sizes: dict[PoolKey, int] = {}
    for kept in layers:
        sizes[kept.pool] = sizes.get(kept.pool, 0) + kept.num_bytes
    return sizes


class Store:
    """The tensors of all layers of a stage.

    Args:
        layers: the cache of each layer.
        infos: the pools.
        device: the device of the tensors.
        first: the number of the first layer.
    """

    def __init__(
        self, layers: Sequence[CacheSpec], infos: Sequence[PoolInfo], device: torch.device, first: int = 0
    ) -> None:
        self.device = device
        numbers = {(info.kind, info.window): number for number, info in enumerate(infos)}
        self.pools = [numbers[kept.pool] for kept in layers]
        """The pool of each layer."""
        self._sizes = [1 if info.kind == "state" else info.page_size for info in infos]
        # One more page on a device, for padding rows; see `graph_replay`.
        spare = [info.kind != "state" and device.type != "cpu" for info in infos]
        slots = [(info.num_pages + more) * size for info, size, more in zip(infos, self._sizes, spare, strict=True)]
        self.tensors: list[tuple[torch.Tensor, ...]] = []
        """The tensors of each layer, each of shape [slots, ...]: slot = page * page size + offset."""
        for kept, number in zip(layers, self.pools, strict=True):
            made = self.tensors[kept.source - first] if kept.source is not None else _make(kept, slots[number], device)
            self.tensors.append(made)
        self._own = [kept.source is None for kept in layers]

    def copy(self, copies: Sequence[Sequence[Copy]]) -> None:
        """Make the copies of each pool; whole pages, since slots that are not in use are never read."""
        for number, part in enumerate(copies):
            if part:
                sources, targets = (torch.tensor([getattr(copy, end) for copy in part]) for end in ("src", "dst"))
                self._copy_pages(number, sources, targets)

    def _copy_pages(self, number: int, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for tensors, pool, is_own in zip(self.tensors, self.pools, self._own, strict=True):
            if pool == number and is_own:
                for tensor in tensors:
                    pages = tensor.unflatten(0, (-1, self._sizes[number]))
                    pages[targets.to(tensor.device)] = pages[sources.to(tensor.device)]


def _make(kept: CacheSpec, slots: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a layer's cache; slots that are not written are never read."""
    return tuple(torch.empty((slots, *shape), dtype=dtype, device=device) for shape, dtype in kept.tensors)
