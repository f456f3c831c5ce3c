"""The key-value caches of one sequence, as mlx-lm makes them: one per layer.

`KVCache` writes into its arrays through the Python object that holds them, so two caches must never share an object.
Two objects may share the array behind them: MLX copies it on the first write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

from parallax_backend_mlx.runtime import KVCache, flatten_tree, mx, tree_map
from parallax_core.api import Unsupported

State = Any
"""Arrays, numbers and names in nested lists and tuples."""


class Entry(Protocol):
    """The cache of mlx-lm for one layer of one sequence."""

    state: State

    @property
    def nbytes(self) -> int:
        """The bytes its arrays take."""

    def is_trimmable(self) -> bool:
        """Whether tokens at its end can be removed."""

    def trim(self, n: int) -> int:
        """Remove the last ``n`` tokens."""

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Make an entry from the ``state`` of another."""


Cache = list[Entry]
"""One entry per layer, in layer order."""


def copy_cache(cache: Cache) -> Cache:
    """Return an independent cache with the same content."""
    return [_copy_entry(entry) for entry in cache]


def cut_cache(cache: Cache, excess: int) -> None:
    """Remove the last ``excess`` tokens.

    Raises:
        Unsupported: if an entry cannot be truncated; the cache is then unchanged.
    """
    if excess == 0:
        return
    for entry in cache:
        if not entry.is_trimmable():
            message = f"this model keeps state that cannot be truncated by {excess} tokens ({type(entry).__name__})"
            raise Unsupported(message, "fork or truncate its sequences at their current length only")
    for entry in cache:
        entry.trim(excess)


def list_arrays(caches: Sequence[Cache]) -> list[mx.array]:
    """Return every array in ``caches``."""
    leaves = flatten_tree([entry.state for cache in caches for entry in cache])
    return [leaf for _, leaf in leaves if isinstance(leaf, mx.array)]


class Mark:
    """The state of a cache before a step, to restore if the step fails.

    A plain cache is truncated, since a copy would make its next write copy everything; others are small and are copied.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._offsets = [entry.offset if type(entry) is KVCache else None for entry in cache]
        self._copies = [None if type(entry) is KVCache else _copy_entry(entry) for entry in cache]

    def restore(self) -> None:
        """Restore the cache. Its arrays may not be evaluated yet."""
        for index, (offset, copy) in enumerate(zip(self._offsets, self._copies, strict=True)):
            entry = self._cache[index]
            if copy is not None:
                self._cache[index] = copy
            elif offset is not None and isinstance(entry, KVCache):
                entry.offset = offset


def _copy_entry(entry: Entry) -> Entry:
    return type(entry).from_state(tree_map(_copy_leaf, entry.state))


def _copy_leaf(leaf: State) -> State:
    return leaf[...] if isinstance(leaf, mx.array) else leaf
