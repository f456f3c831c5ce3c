"""Every page of every stage, known to the head without asking: the same calls on the same pools give the same pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Edit, PoolInfo, Row, StageInfo
from parallax_core.pages.pool import Mark, PagePool


class Ledger:
    """The pools of all stages of a pipeline.

    Pools that differ in nothing but their size take the same numbers of pages in the same calls, so the smallest one
    stands for all of them.
    """

    def __init__(self, stages: Sequence[StageInfo]) -> None:
        infos = [info for stage in stages for info in stage.pools]
        infos.sort(key=lambda info: -info.num_pages)
        smallest = {_shape(info): info for info in infos}  # the last one of a shape stays
        pools = {shape: PagePool(info) for shape, info in smallest.items()}
        self._pools = list(pools.values())
        self._stages = [[(pools[_shape(info)], info.num_pages) for info in stage.pools] for stage in stages]

    @property
    def free(self) -> tuple[tuple[int, ...], ...]:
        """Free pages: for each stage, of each pool."""
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
        """Whether every sequence can be forked at every length, so that a longer one makes its beginnings needless."""
        return all(pool.info.kind in {"full", "latent"} for pool in self._pools)

    @property
    def interval(self) -> int:
        """The tokens at whose multiples every state pool wants a prompt to be kept; 0: none does."""
        stage_options = [pool.info.checkpoint_every for pool in self._pools if pool.info.kind == "state"]
        return math.lcm(*filter(None, stage_options)) if any(stage_options) else 0

    def length(self, seq: SeqId) -> int:
        """Return the length of a sequence once all steps planned so far are done."""
        return self._pools[0].length(seq)

    def can_rewind(self, seq: SeqId, length: int) -> bool:
        """Whether a sequence can be forked or truncated at ``length`` on every stage."""
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
        """Note what the sequences of ``rows`` hold of every pool, before the rows are applied."""
        return tuple(pool.save([row.seq for row in rows]) for pool in self._pools)

    def restore(self, marks: Sequence[Mark]) -> None:
        """Take back the rows that were applied since; what was dropped meanwhile stays so, and nothing was begun."""
        for pool, mark in zip(self._pools, marks, strict=True):
            pool.restore(Mark({seq: holding for seq, holding in mark.holdings.items() if seq in pool}))

    def claim(self, max_tokens: int) -> PageClaim:
        """Begin to plan a step of at most ``max_tokens`` tokens."""
        return PageClaim(self._pools, max_tokens)

    def check(self) -> None:
        """Verify the invariants of every pool; for tests."""
        for pool in self._pools:
            pool.check()


class PageClaim:
    """What a step that is being planned will take of every pool, before anything is taken."""

    def __init__(self, pools: Sequence[PagePool], max_tokens: int) -> None:
        self._pools = pools
        self._max_tokens = max_tokens
        self._claimed = [0] * len(pools)
        self._most = [0] * len(pools)
        """The most that is claimed after any row: a later row may give back what an earlier one needs."""

    def take(self, seq: SeqId, count: int) -> bool:
        """Claim ``count`` more tokens of ``seq``, if they fit beside what is claimed; return whether they do."""
        for pool in self._pools:
            if pool.num_needed(seq, count):
                return self._take_pages(seq, count)
        return True  # most rows of most steps need none

    def fits_fork(self, seq: SeqId, length: int) -> bool:
        """Whether a fork at ``length`` finds its pages now, before the rows of the step, and leaves theirs."""
        return all(
            most + _num_copied(pool, seq, length) <= pool.num_free
            for pool, most in zip(self._pools, self._most, strict=True)
        )

    def fits_new(self, count: int, shared: int = 0) -> bool:
        """Whether a new sequence of ``count`` tokens, a fork of ``shared`` of them, fits beside what is claimed."""
        return all(
            claimed + self._num_new(pool, count, shared) <= pool.num_free
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

    def _num_new(self, pool: PagePool, count: int, shared: int) -> int:
        if pool.info.kind == "state":
            return 1
        size = pool.info.page_size
        if pool.info.kind == "window":  # never more than what a window and a step span, and a page they begin in
            count = min(count, pool.info.window + pool.info.rewind + self._max_tokens + size)
            shared = 0
        return -(-count // size) - (shared // size if pool.info.shares else 0)


def _shape(info: PoolInfo) -> PoolInfo:
    return replace(info, num_pages=0)


def _capacity(pool: PagePool) -> int:
    """A window holds any length, if it holds a window beside what a step adds to it."""
    if pool.info.kind in {"full", "latent"}:
        return pool.info.num_pages * pool.info.page_size
    return 2**53


def _num_copied(pool: PagePool, seq: SeqId, length: int) -> int:
    """Return how many pages a fork takes at once: the tail, or all where none is shared."""
    size = pool.info.page_size
    if pool.info.kind == "state":
        return min(length, 1)
    if pool.info.shares:
        return min(length % size, 1)
    first, _ = pool.pages(seq)
    return -(-length // size) - first
