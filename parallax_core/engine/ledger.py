"""The head's copy of every stage's page pools: the same calls on the same pools give the same pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import PoolUse
from parallax_core.contracts.stage import Edit, PoolInfo, Row, StageInfo
from parallax_core.pages.pool import Mark, PagePool


class Ledger:
    """The pools of all stages of a pipeline.

    Pools that differ only in their size take the same numbers of pages in the same calls, so the ledger keeps the
    smallest one of each such group.
    """

    def __init__(self, stages: Sequence[StageInfo]) -> None:
        infos = [info for stage in stages for info in stage.pools]
        infos.sort(key=lambda info: -info.num_pages)
        smallest = {_shape(info): info for info in infos}  # the last one of a shape wins
        pools = {shape: PagePool(info) for shape, info in smallest.items()}
        self._pools = list(pools.values())
        self._stages = [[(pools[_shape(info)], info.num_pages) for info in stage.pools] for stage in stages]

    @property
    def free(self) -> tuple[tuple[int, ...], ...]:
        """Free pages by stage, then by pool."""
        return tuple(
            tuple(pool.num_free + num_pages - pool.info.num_pages for pool, num_pages in pools)
            for pools in self._stages
        )

    @property
    def capacity(self) -> int:
        """The longest sequence that fits when it is alone, in tokens."""
        return min(_capacity(pool) for pool in self._pools)

    @property
    def is_rewindable(self) -> bool:
        """Whether every sequence can be forked at every length, so that its prefixes need not be stored."""
        return all(pool.info.kind in {"full", "latent"} for pool in self._pools)

    @property
    def interval(self) -> int:
        """The number of tokens at whose multiples a prompt is stored for all state pools; 0: never."""
        intervals = [pool.info.checkpoint_every for pool in self._pools if pool.info.kind == "state"]
        return math.lcm(*filter(None, intervals)) if any(intervals) else 0

    def measure_use(self) -> tuple[PoolUse, ...]:
        """Return the use of every pool of every stage."""
        return tuple(
            PoolUse(stage=index, kind=pool.info.kind, used=pool.info.num_pages - pool.num_free, total=num_pages)
            for index, pools in enumerate(self._stages)
            for pool, num_pages in pools
        )

    def length(self, seq: SeqId) -> int:
        """Return the length of a sequence after all planned steps, in tokens."""
        return self._pools[0].length(seq)

    def can_rewind(self, seq: SeqId, length: int) -> bool:
        """Return whether a sequence can be forked or truncated at ``length`` on every stage."""
        return all(pool.can_rewind(seq, length) for pool in self._pools)

    def edit(self, edit: Edit) -> None:
        """Apply an edit to every pool."""
        for pool in self._pools:
            pool.edit(edit)

    def extend(self, row: Row) -> None:
        """Apply a row to every pool."""
        count = len(row.tokens)
        for pool in self._pools:
            pool.extend(row.seq, count)

    def save(self, rows: Sequence[Row]) -> tuple[Mark, ...]:
        """Return the pages that the sequences of ``rows`` hold in every pool, before the rows are applied."""
        return tuple(pool.save([row.seq for row in rows]) for pool in self._pools)

    def restore(self, marks: Sequence[Mark]) -> None:
        """Undo the rows applied since `save`. Dropped sequences stay dropped; none may have been opened meanwhile."""
        for pool, mark in zip(self._pools, marks, strict=True):
            pool.restore(Mark({seq: holding for seq, holding in mark.holdings.items() if seq in pool}))

    def claim(self, max_tokens: int) -> PageClaim:
        """Return an empty claim for a step of at most ``max_tokens`` tokens."""
        return PageClaim(self._pools, max_tokens)

    def check(self) -> None:
        """Check the invariants of every pool; for tests."""
        for pool in self._pools:
            pool.check()


class PageClaim:
    """The pages that the step being planned will take from every pool."""

    def __init__(self, pools: Sequence[PagePool], max_tokens: int) -> None:
        self._pools = pools
        self._max_tokens = max_tokens
        self._claimed = [0] * len(pools)
        self._most = [0] * len(pools)
        """The largest claim after any row, by pool: a later row may free pages that an earlier one needs."""

    def take(self, seq: SeqId, count: int) -> bool:
        """Claim the pages for ``count`` more tokens of ``seq`` if they are free; return whether they are."""
        for pool in self._pools:
            if pool.num_needed(seq, count):
                return self._take_pages(seq, count)
        return True  # most rows of most steps need no page

    def fits_fork(self, seq: SeqId, length: int) -> bool:
        """Return whether the pages of a fork at ``length``, made before the rows of the step, fit beside theirs."""
        return all(
            most + pool.num_needed_fork(seq, length) <= pool.num_free
            for pool, most in zip(self._pools, self._most, strict=True)
        )

    def fits_new(self, count: int, shared: int = 0) -> bool:
        """Return whether a new sequence of ``count`` tokens, with ``shared`` of them forked, fits beside the claim."""
        return all(
            claimed + pool.num_needed_new(count, shared, self._max_tokens) <= pool.num_free
            for pool, claimed in zip(self._pools, self._claimed, strict=True)
        )

    def _take_pages(self, seq: SeqId, count: int) -> bool:
        wanted = [pool.num_needed(seq, count) for pool in self._pools]
        if any(
            pages > 0 and claimed + pages > pool.num_free
            for pool, claimed, pages in zip(self._pools, self._claimed, wanted, strict=True)
        ):
            return False
        for index, pages in enumerate(wanted):
            self._claimed[index] += pages
            self._most[index] = max(self._most[index], self._claimed[index])
        return True


def _shape(info: PoolInfo) -> PoolInfo:
    return replace(info, num_pages=0)


def _capacity(pool: PagePool) -> int:
    """Return the longest sequence of a pool, in tokens; windows and states hold any length."""
    if pool.info.kind in {"full", "latent"}:
        return pool.info.num_pages * pool.info.page_size
    return 2**53
