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
    stride: int = 1
    """The number of tokens that share a slot, of a size that divides pages: more than 1 for compressed tokens."""
    beside: CacheSpec | None = None
    """What the layer keeps in another pool, in addition."""

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
        return -(-sum(math.prod(shape) * int(dtype.itemsize) for shape, dtype in self.tensors) // self.stride)

    def list_parts(self) -> list[CacheSpec]:
        """Return what the layer keeps in each pool, the first one here."""
        return [self, *(self.beside.list_parts() if self.beside else ())]


def keep_as(kept: CacheSpec, dtype: torch.dtype) -> CacheSpec:
    """Return the cache of a layer with keys and values of a dtype; a state stays as it is.

    Raises:
        Unsupported: if they would be in int8, and are not those of heads.
    """
    if kept.kind == "state":
        return kept
    if dtype == torch.int8 and (kept.kind == "latent" or len(kept.shapes) not in {0, len(("keys", "values"))}):
        message = "kv_cache_dtype is int8, and this model caches latents or an index, which 8 bits change too much"
        raise Unsupported(message, "set PARALLAX_TORCH__KV_CACHE_DTYPE=auto")
    return replace(kept, dtype=dtype, beside=keep_as(kept.beside, dtype) if kept.beside else None)


def list_sizes(layers: Sequence[CacheSpec]) -> dict[PoolKey, int]:
    """Return the bytes of a token, or of a state, in each pool."""
    sizes: dict[PoolKey, int] = {}
    for kept in (part for layer in layers for part in layer.list_parts()):
        sizes[kept.pool] = sizes.get(kept.pool, 0) + kept.num_bytes
    return sizes


@dataclass(frozen=True, eq=False, slots=True)
class KeptPart:
    """What a layer keeps in one pool."""

    pool: int
    """The number of the pool."""
    tensors: tuple[torch.Tensor, ...]
    """Each of shape [slots, ...]: slot = page * page size + offset, divided by `CacheSpec.stride`."""
    page_slots: int
    """The slots of a page."""
    is_own: bool
    """Whether no earlier layer has these tensors."""


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
        sizes = [1 if info.kind == "state" else info.page_size for info in infos]
        # One more page on a device, for padding rows; see `graph_replay`.
        spare = [info.kind != "state" and device.type != "cpu" for info in infos]
        slots = [(info.num_pages + more) * size for info, size, more in zip(infos, sizes, spare, strict=True)]
        self.layers: list[list[KeptPart]] = []
        """What each layer keeps in each of its pools."""
        for layer in layers:
            made = []
            for place, kept in enumerate(layer.list_parts()):
                number, source = numbers[kept.pool], kept.source
                if source is None:
                    tensors = _make(kept, slots[number], device)
                else:
                    tensors = self.layers[source - first][place].tensors
                made.append(KeptPart(number, tensors, sizes[number] // kept.stride, source is None))
            self.layers.append(made)

    def copy(self, copies: Sequence[Sequence[Copy]]) -> None:
        """Make the copies of each pool; whole pages, since slots that are not in use are never read."""
        for number, part in enumerate(copies):
            if part:
                sources, targets = (torch.tensor([getattr(copy, end) for copy in part]) for end in ("src", "dst"))
                self._copy_pages(number, sources, targets)

    def _copy_pages(self, number: int, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for part in (part for layer in self.layers for part in layer if part.pool == number and part.is_own):
            for tensor in part.tensors:
                pages = tensor.unflatten(0, (-1, part.page_slots))
                pages[targets.to(tensor.device)] = pages[sources.to(tensor.device)]


def _make(kept: CacheSpec, slots: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a layer's cache; slots that are not written are never read."""
    count = slots // kept.stride
    return tuple(torch.empty((count, *shape), dtype=dtype, device=device) for shape, dtype in kept.tensors)
