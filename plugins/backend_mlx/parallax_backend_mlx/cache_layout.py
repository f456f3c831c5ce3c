"""Derives a model's cache layout from mlx-lm's caches for it: the arrays and kinds of pools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import ArraysCache, CacheList, KVCache, RotatingKVCache, mx
from parallax_core.api import PoolKind


@dataclass(frozen=True, slots=True)
class Part:
    """One array in the cache of a layer: keys, values, or a state."""

    shape: tuple[int, ...]
    """The shape for one token, [heads, width], or of one state, as the model makes it."""
    dtype: mx.Dtype

    @property
    def num_bytes(self) -> int:
        """The bytes of one token, or of one state."""
        return math.prod(self.shape) * self.dtype.size


@dataclass(frozen=True, slots=True)
class Leaf:
    """The cache of one layer in one pool."""

    kind: PoolKind
    parts: tuple[Part, ...]
    window: int = 0

    @property
    def pool(self) -> tuple[PoolKind, int]:
        """The properties shared by the leaves of one pool."""
        return self.kind, self.window


@dataclass(frozen=True, slots=True)
class Layout:
    """The cache layout of a model: the leaves of each entry of its cache."""

    leaves: dict[int, tuple[Leaf, ...]]
    """The leaves by the index of the entry, in the order of `list_leaves`; only entries that a layer owns."""

    def list_pools(self) -> list[tuple[PoolKind, int]]:
        """Return the kind and the window of each pool that is needed, in a fixed order."""
        return sorted({leaf.pool for leaf in self.list_all()}, key=lambda pool: (pool[0] == "state", *pool))

    def list_sizes(self) -> dict[tuple[PoolKind, int], int]:
        """Return the bytes of a token, or of a state, in each pool."""
        return {pool: self.count_bytes(pool) for pool in self.list_pools()}

    def list_all(self) -> list[Leaf]:
        """Return every leaf, entry by entry."""
        return [leaf for index in sorted(self.leaves) for leaf in self.leaves[index]]

    def count_bytes(self, pool: tuple[PoolKind, int]) -> int:
        """Return the bytes of a token, or of a state, in ``pool``, over all layers."""
        return sum(part.num_bytes for leaf in self.list_all() if leaf.pool == pool for part in leaf.parts)

    @property
    def has_states(self) -> bool:
        """Whether some layer keeps a state, which padding would change."""
        return any(leaf.kind == "state" for leaf in self.list_all())


def make_hidden(network: Network, rows: int, columns: int) -> mx.array | None:
    """Return hidden states of the right shape for ``network``, or None if it takes token ids."""
    if network.is_first:
        return None
    return mx.random.normal((rows, columns, network.shape.width)).astype(network.shape.dtype)


def list_leaves(entry: object) -> Iterator[Any]:
    """Yield ``entry`` itself, or its parts if it is a list of entries."""
    yield from entry.caches if type(entry) is CacheList else [entry]


def read_layout(network: Network) -> Layout | None:
    """Return the cache layout of ``network``, or None if some of its caches do not fit into pages.

    Runs one token and then two more, without evaluating them, to find states whose shape depends on the length of the
    sequence: those fit no slot.
    """
    short, long = network.make_cache(), network.make_cache()
    for cache, num in ((short, 1), (long, 2)):
        network.run(mx.zeros((1, num), dtype=mx.int32), make_hidden(network, 1, num), cache, None)
    leaves: dict[int, tuple[Leaf, ...]] = {}
    for index in network.list_entries():
        found = [read_leaf(leaf) for leaf in list_leaves(short[index])]
        again = [read_leaf(leaf) for leaf in list_leaves(long[index])]
        if found != again or None in found:
            return None
        leaves[index] = tuple(leaf for leaf in found if leaf is not None)
    return Layout(_join_latents(leaves)) if leaves else None


def read_leaf(leaf: object) -> Leaf | None:
    """Return the layout of an entry that holds tokens of one sequence, or None for an entry of unknown kind."""
    if type(leaf) is KVCache:
        parts = _read_tokens(leaf)
        return Leaf("full", parts) if parts else None
    if type(leaf) is RotatingKVCache and leaf.keep == 0:
        parts = _read_tokens(leaf)
        return Leaf("window", parts, leaf.max_size) if parts else None
    if type(leaf) is ArraysCache:
        states: Sequence[mx.array | None] = leaf.cache
        parts = tuple(Part(tuple(array.shape[1:]), array.dtype) for array in states if array is not None)
        return Leaf("state", parts) if len(parts) == len(states) else None
    return None


def _read_tokens(leaf: KVCache | RotatingKVCache) -> tuple[Part, ...]:
    arrays: tuple[mx.array | None, ...] = (leaf.keys, leaf.values)
    return tuple(Part((array.shape[1], array.shape[3]), array.dtype) for array in arrays if array is not None)


def _join_latents(leaves: dict[int, tuple[Leaf, ...]]) -> dict[int, tuple[Leaf, ...]]:
    """Turn full pools into latent ones if no layer keeps keys and values of equal width in them."""
    full = [leaf for entry in leaves.values() for leaf in entry if leaf.kind == "full"]
    if not full or not any(_is_latent(leaf) for leaf in full):
        return leaves
    return {index: tuple(_as_latent(entry)) for index, entry in leaves.items()}


def _is_latent(leaf: Leaf) -> bool:
    keys, values = leaf.parts
    return keys.shape[0] == values.shape[0] == 1 and keys.shape[1] != values.shape[1]


def _as_latent(leaves: Iterable[Leaf]) -> Iterator[Leaf]:
    for leaf in leaves:
        yield Leaf("latent", leaf.parts) if leaf.kind == "full" else leaf
