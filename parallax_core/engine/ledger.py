"""Which pages of a stage's pool are promised to whom; exact, because core alone decides."""

from __future__ import annotations

from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import PoolInfo


class Ledger:
    """Counts the pages of one pool. A sequence reserves all it can ever need when it is admitted."""

    def __init__(self, pool: PoolInfo) -> None:
        self._pool = pool
        self._reserved: dict[SeqId, int] = {}
        self.free = pool.num_pages

    @property
    def capacity(self) -> int:
        """The most tokens one sequence can hold."""
        return self._pool.num_pages * self._pool.page_size

    def can_reserve(self, num_tokens: int) -> bool:
        """Whether a sequence of ``num_tokens`` fits into what is free now."""
        return self._pages(num_tokens) <= self.free

    def reserve(self, seq: SeqId, num_tokens: int) -> None:
        """Set pages aside for ``seq``; ask `can_reserve` first."""
        pages = self._pages(num_tokens)
        assert pages <= self.free, "reserved more pages than are free"
        assert seq not in self._reserved, "reserved twice"
        self._reserved[seq] = pages
        self.free -= pages

    def release(self, seq: SeqId) -> None:
        """Give back the pages of ``seq``."""
        self.free += self._reserved.pop(seq)

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pool.page_size)
