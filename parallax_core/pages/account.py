"""Keeps the sequences of a stage, with their specs, tokens and pages, but without tensors."""

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
    """An open sequence."""

    spec: SequenceSpec
    choice: int = 0
    """The choice that keys its draws; see `parallax_core.sampling.draw_key`."""
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A `StageOutput` whose result is complete."""

    result: StageResult

    def wait(self) -> StageResult:
        """Return the result."""
        return self.result


class Account:
    """The sequences of a stage, managed as the `Stage` contract requires; the stage itself handles only tensors.

    `edit` and `step` raise the errors of the contract before anything changes. They return the work left for tensors:
    for each pool of `StageInfo.pools`, the copies to make before anything is written.

    A stage whose steps are still running when `step` returns holds their pages with `PagePool.pin`.
    """

    def __init__(self, info: StageInfo) -> None:
        self.info = info
        self.pools = [PagePool(pool) for pool in info.pools]
        self.entries: dict[SeqId, Entry] = {}

    @property
    def free(self) -> tuple[int, ...]:
        """Free pages of each pool, for `StageResult.free`."""
        return tuple(pool.num_free for pool in self.pools)

    def edit(self, edit: Edit) -> list[list[Copy]]:
        """Apply an edit and return the copies to make in each pool.

        Raises:
            KeyError: if a sequence is not open, or one to be opened is.
            ValueError: if a length exceeds the sequence's, or a fork has another adapter.
            Unsupported: if a window or state cannot be rewound to a length, or the stage has no adapters.
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

        If the computation then fails, the function that `save` returned before the call undoes this; the stage itself
        restores the states of layers that keep one per sequence.

        Raises:
            KeyError: if a sequence is not open.
            ValueError: if the batch is too large or inconsistent with itself, the sequences or the model.
            Unsupported: if it needs a capability that `StageInfo.capabilities` does not list.
            OutOfPages: if a pool has too few free pages.
        """
        entries = {row.seq: self.entries[row.seq] for row in batch.rows if row.seq in self.entries}
        check_batch(batch, {seq: len(entry.tokens) for seq, entry in entries.items()}, self.info)
        check_room(self.pools, batch.rows)
        for row in batch.rows:
            entries[row.seq].tokens += row.tokens
        return [[copy for row in batch.rows for copy in pool.extend(row.seq, len(row.tokens))] for pool in self.pools]

    def save(self, rows: Sequence[Row]) -> Callable[[], None]:
        """Record the tokens and pages of the sequences of ``rows``, before `step` is called with them.

        A row of a sequence that is not open is ignored: `step` refuses it.

        Returns:
            A function that undoes the step: the sequences get back their earlier tokens and pages. No other sequence
            may have changed in between.
        """
        seqs = [row.seq for row in rows if row.seq in self.entries]
        lengths = {seq: len(self.entries[seq].tokens) for seq in seqs}
        marks = [pool.save(seqs) for pool in self.pools]

        def restore() -> None:
            for seq, length in lengths.items():
                del self.entries[seq].tokens[length:]
            for pool, mark in zip(self.pools, marks, strict=True):
                pool.restore(mark)

        return restore

    def _edit_pools(self, edit: Edit) -> list[list[Copy]]:
        """Apply an edit to every pool, or to none if one has no page for a fork."""
        copies: list[list[Copy]] = []
        try:
            for pool in self.pools:
                copies.append(pool.edit(edit))  # noqa: PERF401 -- the copies before an error are needed
        except OutOfPages:
            self._take_back(edit, self.pools[: len(copies)])
            raise
        return copies

    @staticmethod
    def _take_back(edit: Edit, pools: Sequence[PagePool]) -> None:
        assert isinstance(edit, Fork), "only a fork takes pages"
        for pool in pools:
            pool.drop(edit.dst)
