"""Estimates how much of a prompt each replica has in its prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from parallax_core.contracts.engine import Request

BLOCK = 32
"""Tokens per hash: a block is remembered as a whole or not at all."""

CAPACITY = 32768
"""Blocks remembered for each replica: a million tokens, in a few megabytes."""


class ReplicaPrefixIndex:
    """Remembers the blocks of prompts by chained hashes, so that equal blocks match only after equal prefixes.

    Each hash maps to a set of ranks, as the bits of an integer: one pass over a prompt answers for all replicas.
    The least recently used blocks are forgotten first, the ends of prompts before their beginnings. A hash collision
    only sends a request to a replica that has less of its prompt than expected.
    """

    def __init__(self, num_replicas: int, capacity: int = CAPACITY) -> None:
        self._num_replicas = num_replicas
        self._capacity = capacity
        self._ranks: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, rank: int) -> None:
        """Note that there is a replica of that rank."""
        self._num_replicas = max(self._num_replicas, rank + 1)

    def find_cached(self, keys: Sequence[int]) -> list[int]:
        """Return the number of the prompt's tokens that each replica probably has, by rank; ``keys`` of `make_keys`."""
        known = [0] * self._num_replicas
        left = self._ranks.get(keys[0], 0) if keys else 0
        for number, key in enumerate(keys):
            lost = left & ~self._ranks.get(key, 0)
            left ^= lost
            _set(known, lost, number * BLOCK)
            if not left:
                break
        _set(known, left, len(keys) * BLOCK)
        return known

    def note(self, keys: Sequence[int], rank: int) -> None:
        """Note that the replica of that rank computes the prompt with these keys."""
        for key in reversed(keys):
            self._ranks[key] = self._ranks.get(key, 0) | 1 << rank
            self._ranks.move_to_end(key)
        while len(self._ranks) > self._capacity * self._num_replicas:
            self._ranks.popitem(last=False)

    def forget(self, rank: int) -> None:
        """Note that the replica of that rank has lost its cache."""
        kept = ((key, ranks & ~(1 << rank)) for key, ranks in self._ranks.items())
        self._ranks = OrderedDict((key, ranks) for key, ranks in kept if ranks)


def _set(known: list[int], ranks: int, num_tokens: int) -> None:
    """Set the number for every rank of a set."""
    while ranks:
        rank = ranks.bit_length() - 1
        known[rank] = num_tokens
        ranks ^= 1 << rank


def make_keys(request: Request) -> list[int]:
    """Return a hash per full block of the prompt, which covers the prompt up to its end, the adapter and the salt."""
    keys, key = [], hash((request.adapter, request.salt))
    for start in range(0, len(request.prompt) - BLOCK + 1, BLOCK):
        key = hash((key, request.prompt[start : start + BLOCK]))
        keys.append(key)
    return keys
