"""The page pools of a stage, changed together, and taken back when a step fails."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.api import Copy, Edit, Fork, Mark, OutOfPages, PagePool, PoolInfo, Row, SeqId

Copies = list[list[Copy]]
"""For each pool, the copies to make before any other write."""


class Account:
    """The pools of a stage; the same calls in the same order as the head's ledger, so the same result."""

    def __init__(self, infos: Sequence[PoolInfo]) -> None:
        self.pools = [PagePool(info) for info in infos]

    @property
    def free(self) -> tuple[int, ...]:
        """The free pages of each pool."""
        return tuple(pool.num_free for pool in self.pools)

    def edit(self, edit: Edit) -> Copies:
        """Apply ``edit`` to every pool, and return the copies to make.

        Raises:
            OutOfPages: if a fork needs a page and none is free; nothing has changed then.
        """
        try:
            return [pool.edit(edit) for pool in self.pools]
        except OutOfPages:
            assert isinstance(edit, Fork)  # nothing else takes pages
            for pool in self.pools:
                if edit.dst in pool:
                    pool.drop(edit.dst)
            raise

    def save(self, rows: Sequence[Row]) -> list[Mark]:
        """Save the pages of the sequences of ``rows``."""
        return [pool.save([row.seq for row in rows]) for pool in self.pools]

    def restore(self, marks: Sequence[Mark]) -> None:
        """Restore the sequences of ``marks``."""
        for pool, mark in zip(self.pools, marks, strict=True):
            pool.restore(mark)

    def extend(self, rows: Sequence[Row], marks: Sequence[Mark]) -> Copies:
        """Make room for ``rows`` in order, and return the copies to make.

        Args:
            rows: of different sequences.
            marks: what `save` returns for them.

        Raises:
            OutOfPages: if there are too few free pages; nothing has changed then.
        """
        try:
            return [[copy for row in rows for copy in pool.extend(row.seq, len(row.tokens))] for pool in self.pools]
        except OutOfPages:
            self.restore(marks)
            raise

    def can_rewind(self, seq: SeqId, length: int) -> bool:
        """Whether a sequence can be forked or truncated at ``length``."""
        return all(pool.can_rewind(seq, length) for pool in self.pools)
