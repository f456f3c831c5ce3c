"""Each fault in rows, pages and layers is planted into the healthy toy, and the kit is asked whether it sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import (
    Copy,
    Edit,
    Fork,
    Outcome,
    PagePool,
    Row,
    SeqId,
    StageBatch,
    StageResult,
    answer_draw,
)
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.arithmetic import finish_token, gather_notes, score_tokens
from parallax_core.testing.memory import Memory
from parallax_core.testing.paged import PagedLayers, States
from parallax_core.testing.toy import ToyStage
from tests.conformance.faulty import FULL, Part, find_fault


class StartOffByOne(PagedLayers):
    """Takes rows that do not begin a sequence to stand one place further."""

    def run(self, batch: StageBatch) -> States:
        rows = [
            replace_row(row, positions=tuple(range(row.start + 1, row.start + 1 + len(row.tokens))))
            if row.start
            else row
            for row in batch.rows
        ]
        return super().run(replace(batch, rows=tuple(rows)))


class OneStartForAll(PagedLayers):
    """Takes all rows of a batch to begin where the first one does."""

    def run(self, batch: StageBatch) -> States:
        rows = [
            replace_row(row, positions=tuple(range(batch.rows[0].start, batch.rows[0].start + len(row.tokens))))
            for row in batch.rows
        ]
        return super().run(replace(batch, rows=tuple(rows)))


class RowsSwapped(ToyStage):
    """Answers the rows of a batch from the last to the first."""

    def answer_rows(self, rows: Sequence[Row], hidden: States) -> Any:
        return super().answer_rows(rows[::-1], hidden[::-1])


class RowsSorted(ToyStage):
    """Answers the rows of a batch in the order of their handles."""

    def answer_rows(self, rows: Sequence[Row], hidden: States) -> Any:
        pairs = sorted(zip(rows, hidden, strict=True), key=lambda pair: pair[0].seq)
        return super().answer_rows([row for row, _ in pairs], [states for _, states in pairs])


class LastOffsetOnly(ToyStage):
    """Answers every output as if it were for the last token of its row."""

    def answer_rows(self, rows: Sequence[Row], hidden: States) -> Any:
        return super().answer_rows(rows, [[states[-1]] * len(states) for states in hidden])


class WindowTooWide(PagedLayers):
    """Lets a token see one more than its window."""

    change = 1

    def prefix_index(self, memory: Memory, index: int, row: Row) -> list[int]:
        first, _ = memory.pool.pages(row.seq)
        oldest = first * memory.pool.info.page_size
        window = memory.pool.info.window + self.change
        ends = range(row.start + 1, row.start + len(row.tokens) + 1)
        return [gather_notes(memory.read(index, row.seq, max(oldest, end - window), end)) for end in ends]


class WindowTooNarrow(WindowTooWide):
    """Lets a token see one less."""

    change = -1


class WindowInChunkOnly(PagedLayers):
    """Lets a window begin with the chunk."""

    def prefix_index(self, memory: Memory, index: int, row: Row) -> list[int]:
        ends = range(row.start + 1, row.start + len(row.tokens) + 1)
        window = memory.pool.info.window
        return [gather_notes(memory.read(index, row.seq, max(row.start, end - window), end)) for end in ends]


class SharingPool(PagePool):
    """Writes into a page that others hold too."""

    def _has_shared_tail(self, holding: Any, refs: Any) -> bool:
        return False


class SharedPageWritten(Memory):
    pool_type = SharingPool


class TailSharingPool(PagePool):
    """Shares the page a fork ends in, too, and gives its copy away."""

    def fork(self, src: SeqId, dst: SeqId, length: int) -> list[Copy]:
        copies = super().fork(src, dst, length)
        if copies and self.info.shares and self.info.kind != "state":
            holding = self._holdings[dst]
            holding.pages = (*holding.pages[:-1], copies[-1].src)
        return []


class TailShared(Memory):
    pool_type = TailSharingPool


class TailNotCopied(Memory):
    """Takes a page for the tail of a fork, and leaves it as it is."""

    def apply_copies(self, copies: Sequence[Copy]) -> None:
        super().apply_copies([replace(copy, num_slots=0) for copy in copies])


class TailCopiedShort(Memory):
    """Copies one slot too few."""

    def apply_copies(self, copies: Sequence[Copy]) -> None:
        super().apply_copies([replace(copy, num_slots=copy.num_slots - 1) for copy in copies])


class CopyLate(Memory):
    """Makes the copies of a fork when the fork is written for the first time."""

    def edit(self, edit: Edit) -> None:
        waiting = self.__dict__.setdefault("waiting", {})
        copies = self.pool.edit(edit)
        if isinstance(edit, Fork):
            waiting[edit.dst] = copies

    def extend(self, row: Row) -> None:
        self.apply_copies(self.__dict__.get("waiting", {}).pop(row.seq, []))
        super().extend(row)


class LongMemory(PagedLayers):
    """Still sees, after a truncation, the last token there was before it."""

    def prefix_index(self, memory: Memory, index: int, row: Row) -> list[int]:
        kept = memory.__dict__.setdefault("kept", {})
        found = super().prefix_index(memory, index, row)
        length, note = kept.get((index, row.seq), (0, 0))
        stop = row.start + len(row.tokens)
        if stop >= length:
            kept[index, row.seq] = stop, memory.read(index, row.seq, stop - 1, stop)[0]
            return found
        return [gather_notes([note], gathered) for gathered in found]


class LeakingPool(PagePool):
    """Keeps the last page of what is dropped."""

    def drop(self, seq: SeqId) -> None:
        self._release(self._holdings.pop(seq).pages[:-1])


class DropLeaks(Memory):
    pool_type = LeakingPool


class KeepingPool(PagePool):
    """Keeps the pages behind a truncation, for the sequence will grow again."""

    def truncate(self, seq: SeqId, length: int) -> None:
        self._check_rewind(seq, length)
        self._holdings[seq].length = length


class TruncateKeepsPages(Memory):
    pool_type = KeepingPool


class FreeMiscounted(ToyStage):
    """Tells the free pages of before the step."""

    def step(self, batch: StageBatch) -> Outcome:
        before = self.free
        return Outcome(replace(super().step(batch).result, free=before))


class LazyOutcome:
    def __init__(self, finish: Callable[[], StageResult]) -> None:
        self._finish = finish

    def wait(self) -> StageResult:
        return self._finish()


class PagesReadLate(ToyStage):
    """Reads what it remembers when the result is waited for, from pages that by then may be another's."""

    def step(self, batch: StageBatch) -> Any:
        drafts = [self.make_drafts(row, output) for row in batch.rows for output in row.outputs]  # type: ignore[arg-type]
        free = super().step(batch).result.free
        (memory,) = self.layers.memories
        places = [memory.pool.pages(row.seq)[1] for row in batch.rows]
        hidden = self.layers.begin_rows(batch)

        def finish() -> StageResult:
            answers = []
            known = iter(drafts)
            for row, pages, states in zip(batch.rows, places, hidden, strict=True):
                notes = self._read(memory, pages)
                for output in row.outputs:
                    gathered = gather_notes(notes[: row.start + output.offset + 1])
                    logits = score_tokens(finish_token(states[output.offset], gathered), self.toy.vocab)
                    answers.append(answer_draw(output, logits, next(known)))  # type: ignore[arg-type]
            return StageResult(tuple(answers), free=free)

        return LazyOutcome(finish)

    def _read(self, memory: Memory, pages: Sequence[int]) -> list[int]:
        size = memory.pool.info.page_size
        return [note for page in pages for note in memory._cells[0][page * size : page * size + size]]


class FreeReadLate(ToyStage):
    """Tells the free pages of when the result is waited for."""

    def step(self, batch: StageBatch) -> Any:
        result = super().step(batch).result
        return LazyOutcome(lambda: replace(result, free=self.free))


class HiddenReversed(ToyStage):
    """Hands on the hidden states of a batch with its rows in reverse."""

    def step(self, batch: StageBatch) -> Outcome:
        if not self.info.gives:
            return super().step(batch)
        result = super().step(replace(batch, rows=batch.rows[::-1])).result
        return Outcome(result)


class LaterPartsForgetPrompts(ToyStage):
    """On a part that does not begin with layer 0, takes everything to be output."""

    def make_drafts(self, row: Row, output: Any) -> Any:
        drafts = super().make_drafts(row, output)
        if not self.info.layers.start:
            return drafts
        return [replace(draft, prompt=(), output=(*draft.prompt, *draft.output)) for draft in drafts]


class NumberedFromNought(PagedLayers):
    """On a part that does not begin with layer 0, counts its positions from the beginning of the row."""

    def run(self, batch: StageBatch) -> States:
        rows = [replace_row(row, positions=tuple(range(len(row.tokens)))) for row in batch.rows]
        return super().run(replace(batch, rows=tuple(rows)) if batch.hidden else batch)


def replace_row(row: Row, positions: tuple[int, ...]) -> Row:
    return Row(row.seq, row.start, row.tokens, row.outputs, row.positions or positions, row.spans)


WINDOW: tuple[PoolKind, ...] = ("window", "window")
MIXED: tuple[PoolKind, ...] = ("full", "window", "state")
FAULTS: list[tuple[Part, tuple[PoolKind, ...], str, str]] = [
    (StartOffByOne, FULL, "test_chunked_prefill_equals_at_once", "chunks of 1 gives other tokens than at once"),
    (StartOffByOne, FULL, "test_decode_equals_prefill", "drawn one by one differ"),
    (OneStartForAll, FULL, "test_batch_equals_alone", "rows in a batch differ from alone"),
    (RowsSwapped, FULL, "test_batch_equals_alone", "rows in a batch differ from alone"),
    (RowsSwapped, FULL, "test_order_of_rows_does_not_matter", "answered as in another order"),
    (RowsSorted, FULL, "test_order_of_rows_does_not_matter", "answered as in another order"),
    (LastOffsetOnly, FULL, "test_every_output_of_a_row_is_answered_in_order", "outputs at all offsets"),
    (WindowTooWide, WINDOW, "test_window_layer_sees_exactly_its_window", "the token 3 before the last one changes"),
    (WindowTooWide, MIXED, "test_window_layer_sees_exactly_its_window", "the token 3 before the last one changes"),
    (WindowTooNarrow, WINDOW, "test_window_layer_sees_exactly_its_window", "the token 2 before the last one does not"),
    (WindowTooWide, WINDOW, "test_sequence_goes_on_when_its_first_pages_are_forgotten", "in chunks of 1, a sequence"),
    (WindowInChunkOnly, WINDOW, "test_chunked_prefill_equals_at_once", "gives other tokens than at once"),
    (SharedPageWritten, FULL, "test_shared_pages_are_copied_before_they_are_written", "wrote into a page it shares"),
    (TailShared, FULL, "test_source_and_fork_do_not_see_each_other", "sees what"),
    (
        TailNotCopied,
        FULL,
        "test_fork_at_every_length_equals_recomputation",
        "a fork at 1, its source's length, differs",
    ),
    (TailNotCopied, ("state",), "test_fork_at_every_length_equals_recomputation", "a fork at 1"),
    (TailCopiedShort, FULL, "test_fork_at_every_length_equals_recomputation", "a fork at 1"),
    (TailCopiedShort, ("latent",), "test_fork_behind_the_end_equals_recomputation", "a fork at 1 of"),
    (CopyLate, FULL, "test_fork_keeps_the_moment_it_was_made", "what its source wrote into its tail afterwards"),
    (CopyLate, ("state",), "test_fork_keeps_the_moment_it_was_made", "what its source wrote into its tail afterwards"),
    (CopyLate, FULL, "test_fork_outlives_its_source", "a fork changes when its source is dropped"),
    (LongMemory, FULL, "test_truncated_sequence_goes_on_as_if_nothing_had_been", "goes on otherwise"),
    (DropLeaks, FULL, "test_pages_of_dropped_sequences_come_back", "do not come back"),
    (TruncateKeepsPages, FULL, "test_free_pages_are_those_of_the_account", "pages free, and the account"),
    (SharedPageWritten, FULL, "test_free_pages_are_those_of_the_account", "pages free, and the account"),
    (FreeMiscounted, FULL, "test_free_pages_are_those_of_the_account", "step 0: the stage has"),
    (FreeMiscounted, FULL, "test_free_pages_of_every_part_are_those_of_the_account", "split at (1,): free pages are"),
    (PagesReadLate, ("full",), "test_steps_in_flight_keep_their_pages", "a step that is in flight changes"),
    (PagesReadLate, ("full",), "test_edits_after_a_step_do_not_reach_into_it", "the step before them differs"),
    (FreeReadLate, FULL, "test_free_pages_of_steps_in_flight_are_those_of_their_time", "steps in flight report"),
    (HiddenReversed, FULL, "test_split_batches_and_forks_as_the_whole", "batches and forks differ"),
    (LaterPartsForgetPrompts, FULL, "test_split_draws_as_the_whole", "do not draw as in the whole"),
    (NumberedFromNought, FULL, "test_every_split_equals_the_whole", "split at (1,)"),
]


@pytest.mark.parametrize(("part", "kinds", "test", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_fault_is_found(part: Part, kinds: tuple[PoolKind, ...], test: str, words: str) -> None:
    assert words in find_fault(part, test, kinds)
