"""What a stage has to know of its sequences, tensors apart: what was said of each, its tokens, and its pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parallax_core.base.errors import OutOfPages
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import (
    Drop,
    Edit,
    Fork,
    Open,
    Row,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageResult,
    Truncate,
)
from parallax_core.pages.check import check_batch, check_edit, check_room
from parallax_core.pages.pool import Copy, PagePool


@dataclass(slots=True)
class Entry:
    """One open sequence."""

    spec: SequenceSpec
    choice: int = 0
    """Whose draws are its own; see `parallax_core.sampling.draw_key`."""
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A `StageOutput` with nothing left to wait for."""

    result: StageResult

    def wait(self) -> StageResult:
        """Return the result."""
        return self.result


class Account:
    """The sequences of a stage, kept as the contract asks: a stage that has one is left with the tensors.

    `edit` and `step` refuse what the contract says is to be refused, before anything changes. What they return is what
    is left to do with tensors: for each pool of `StageInfo.pools`, the copies to make before anything is written.

    A stage whose steps are still running when `step` returns holds their pages by `PagePool.pin`.
    """

    def __init__(self, info: StageInfo) -> None:
        self.info = info
        self.pools = [PagePool(pool) for pool in info.pools]
        self.entries: dict[SeqId, Entry] = {}

    @property
    def free(self) -> tuple[int, ...]:
        """Free pages of each pool, as `StageResult.free` tells them."""
        return tuple(pool.num_free for pool in self.pools)

    def edit(self, edit: Edit) -> list[list[Copy]]:
        """Apply an edit, and return the copies to make in each pool.

        Raises:
            KeyError: for a sequence that is not open, or one to be opened that is.
            ValueError: for a length beyond the sequence's, or another adapter in a fork.
            Unsupported: for a length a window or a state cannot go back to, or an adapter where there are none.
            OutOfPages: if a fork needs a page and none is free.
        """
        named = (edit.src, edit.dst) if isinstance(edit, Fork) else (edit.seq,)
        check_edit(edit, {seq: self.entries[seq].spec for seq in named if seq in self.entries}, self.pools, self.info)
        copies = self._edit_pools(edit)
        match edit:
            case Open(seq, spec, choice):
                self.entries[seq] = Entry(spec, choice)
            case Fork(src, dst, length, choice, spec):
                source = self.entries[src]
                self.entries[dst] = Entry(spec or source.spec, choice, source.tokens[:length])
            case Truncate(seq, length):
                del self.entries[seq].tokens[length:]
            case Drop(seq):
                del self.entries[seq]
        return copies

    def step(self, batch: StageBatch) -> list[list[Copy]]:
        """Append the tokens of a batch to their sequences, take pages for them, and return the copies to make.

        The tokens of a row have been appended then. If the computation fails, what `save` gave before the call takes
        that back; what a layer keeps of a whole sequence, a state, is for the stage to put back.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: if the batch is too large, or something in it does not fit the rest, the sequences or the model.
            Unsupported: if it asks for what `StageInfo.capabilities` does not name.
            OutOfPages: if a pool has too few free pages.
        """
        entries = {row.seq: self.entries[row.seq] for row in batch.rows if row.seq in self.entries}
        check_batch(batch, {seq: len(entry.tokens) for seq, entry in entries.items()}, self.info)
        check_room(self.pools, batch.rows)
        for row in batch.rows:
            entries[row.seq].tokens += row.tokens
        return [[copy for row in batch.rows for copy in pool.extend(row.seq, len(row.tokens))] for pool in self.pools]

    def save(self, rows: Sequence[Row]) -> Callable[[], None]:
        """Note what the sequences of ``rows`` have, before `step` is called with them.

        Returns:
            What takes that step back: the sequences then have the tokens and pages they had, and no other has changed.

        Raises:
            KeyError: for a sequence that is not open.
        """
        seqs = [row.seq for row in rows]
        lengths = {seq: len(self.entries[seq].tokens) for seq in seqs}
        marks = [pool.save(seqs) for pool in self.pools]

        def restore() -> None:
            for seq, length in lengths.items():
                del self.entries[seq].tokens[length:]
            for pool, mark in zip(self.pools, marks, strict=True):
                pool.restore(mark)

        return restore

    def _edit_pools(self, edit: Edit) -> list[list[Copy]]:
        """Apply an edit to every pool, or, if one of them has no page for a fork, to none."""
        copies: list[list[Copy]] = []
        try:
            for pool in self.pools:
                copies.append(pool.edit(edit))  # noqa: PERF401 -- those before one that raises are needed
        except OutOfPages:
            self._take_back(edit, self.pools[: len(copies)])
            raise
        return copies

    @staticmethod
    def _take_back(edit: Edit, pools: Sequence[PagePool]) -> None:
        assert isinstance(edit, Fork), "only a fork takes pages"
        for pool in pools:
            pool.drop(edit.dst)
