"""Derives a model's cache layout from the caches mlx-lm makes for it: the arrays, and the kinds of their pools."""

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
    """One array of one layer: of keys, of values, or of a state."""

    shape: tuple[int, ...]
    """Of a token: [heads, width]. Of a state: whatever the model gives it."""
    dtype: mx.Dtype

    @property
    def num_bytes(self) -> int:
        """Of one token, or of one state."""
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
    """All that a model keeps: leaves by the entry of the cache they belong to."""

    leaves: dict[int, tuple[Leaf, ...]]
    """By the index of an entry that a layer owns, in the order of `list_leaves`."""

    def list_pools(self) -> list[tuple[PoolKind, int]]:
        """Return the kind and the window of each pool there must be, in a fixed order."""
        return sorted({leaf.pool for leaf in self.list_all()}, key=lambda pool: (pool[0] == "state", *pool))

    def list_sizes(self) -> dict[tuple[PoolKind, int], int]:
        """Return the bytes that a token, or a state, takes in each pool."""
        return {pool: self.count_bytes(pool) for pool in self.list_pools()}

    def list_all(self) -> list[Leaf]:
        """Return every leaf, entry by entry."""
        return [leaf for index in sorted(self.leaves) for leaf in self.leaves[index]]

    def count_bytes(self, pool: tuple[PoolKind, int]) -> int:
        """Return the bytes a token, or a state, takes in ``pool`` over all layers."""
        return sum(part.num_bytes for leaf in self.list_all() if leaf.pool == pool for part in leaf.parts)

    @property
    def has_states(self) -> bool:
        """Whether some layer keeps a state, which padding would spoil."""
        return any(leaf.kind == "state" for leaf in self.list_all())


def make_hidden(network: Network, rows: int, columns: int) -> mx.array | None:
    """Return hidden states for ``network``, as large as real ones, or None if it begins with token ids."""
    if network.is_first:
        return None
    return mx.random.normal((rows, columns, network.shape.width)).astype(network.shape.dtype)


def list_leaves(entry: object) -> Iterator[Any]:
    """Yield ``entry`` itself, or what it is made of if it is a list of entries."""
    yield from entry.caches if type(entry) is CacheList else [entry]


def read_layout(network: Network) -> Layout | None:
    """Return what ``network`` keeps of a sequence, or None if some of it has no place in pages.

    Runs one token and then two more, of which nothing is evaluated: a state whose shape depends on the length of its
    sequence fits no slot.
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
    """Return what an entry of one sequence that holds tokens keeps, or None for one of an unknown kind."""
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
    """Call full pools latent if no layer keeps keys and values of equal width in them."""
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
