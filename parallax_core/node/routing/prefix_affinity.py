"""Which replica has probably computed how much of a prompt before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from parallax_core.contracts.engine import Request

BLOCK = 32
"""Tokens that are known or not known together."""

CAPACITY = 32768
"""Blocks that are remembered for each replica: a million tokens, in a few megabytes."""


class ReplicaPrefixIndex:
    """Remembers the blocks of prompts by chained hashes, so that a block is the same only after the same beginning.

    For each hash there is a set of ranks, as the bits of an integer: one walk over a prompt answers for all replicas.
    What was not met for the longest time is forgotten first, ends of prompts before their beginnings. Two prompts
    whose hashes agree by chance only send a request to a replica that knows less than it seems to.
    """

    def __init__(self, num_replicas: int, capacity: int = CAPACITY) -> None:
        self._num_replicas = num_replicas
        self._capacity = capacity * num_replicas
        self._ranks: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ranks)

    def find_cached(self, keys: Sequence[int]) -> list[int]:
        """Return how many tokens each replica knows, by rank, of the prompt with these keys."""
        known = [len(keys) * BLOCK] * self._num_replicas
        left = (1 << self._num_replicas) - 1
        for number, key in enumerate(keys):
            lost = left & ~self._ranks.get(key, 0)
            left ^= lost
            while lost:
                rank = lost.bit_length() - 1
                known[rank] = number * BLOCK
                lost ^= 1 << rank
            if not left:
                break
        return known

    def note(self, keys: Sequence[int], rank: int) -> None:
        """The replica of that rank computes the prompt with these keys."""
        for key in reversed(keys):
            self._ranks[key] = self._ranks.get(key, 0) | 1 << rank
            self._ranks.move_to_end(key)
        while len(self._ranks) > self._capacity:
            self._ranks.popitem(last=False)

    def forget(self, rank: int) -> None:
        """The replica of that rank has lost what it knew."""
        kept = ((key, ranks & ~(1 << rank)) for key, ranks in self._ranks.items())
        self._ranks = OrderedDict((key, ranks) for key, ranks in kept if ranks)


def make_keys(request: Request) -> list[int]:
    """Return a hash for each full block of the prompt, each of all before it, the adapter and the salt."""
    keys, key = [], hash((request.adapter, request.salt))
    for start in range(0, len(request.prompt) - BLOCK + 1, BLOCK):
        key = hash((key, request.prompt[start : start + BLOCK]))
        keys.append(key)
    return keys
