"""Each breach of the contract is planted into the healthy toy, and the kit is asked whether it sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_core.api import (
    BackendFailed,
    Drop,
    Edit,
    Fork,
    Open,
    Outcome,
    PoolInfo,
    Row,
    SequenceSpec,
    StageBatch,
    StageInfo,
    TensorSpec,
    Truncate,
)
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.memory import Memory
from parallax_core.testing.toy import Sizes, ToyStage
from tests.conformance.faulty import FULL, Part, find_fault


class Saying(ToyStage):
    """Says something else of itself."""

    @property
    def info(self) -> StageInfo:
        return self.say(self._info)

    def say(self, info: StageInfo) -> StageInfo:
        raise NotImplementedError


class TakesAtTheBeginning(Saying):
    def say(self, info: StageInfo) -> StageInfo:
        return info if info.layers.start else replace(info, takes=(TensorSpec(1, "int64"),))


class HasNoVersion(Saying):
    def say(self, info: StageInfo) -> StageInfo:
        return replace(info, weights_version="")


class ForgetsItsWindow(Saying):
    def say(self, info: StageInfo) -> StageInfo:
        return replace(info, pools=tuple(replace(pool, window=0) for pool in info.pools))


class CountsItsOwnLayersOnly(Saying):
    def say(self, info: StageInfo) -> StageInfo:
        return replace(info, num_layers=len(info.layers))


class CountsPartsFromItsOwnLayer(Saying):
    def say(self, info: StageInfo) -> StageInfo:
        layers = range(info.layers.start, info.layers.stop)
        return replace(info, weights_parts={f"layers.{layer}": str(layer - info.layers.start) for layer in layers})


class GivesTwice(Saying):
    def say(self, info: StageInfo) -> StageInfo:
        return replace(info, gives=info.gives * 2)


class Changes(Saying):
    """Counts its sequences into the version of its weights."""

    def say(self, info: StageInfo) -> StageInfo:
        return replace(info, weights_version=str(len(self.batches)))


class ClosesOnce(ToyStage):
    def close(self) -> None:
        if self.closed:
            raise BackendFailed("closed already")
        super().close()


class NeverCloses(ToyStage):
    def close(self) -> None:
        pass


class Shared(Memory):
    """Has the same cells in every stage."""

    cells: dict[int, list[list[int]]] = {}  # noqa: RUF012 -- the fault

    def __init__(self, info: PoolInfo, num_layers: int) -> None:
        super().__init__(info, num_layers)
        self._cells = self.cells.setdefault(num_layers, self._cells)


class OpensAPage(ToyStage):
    """Takes a page for every sequence as it is opened."""

    def apply_edit(self, edit: Edit) -> None:
        super().apply_edit(edit)
        if isinstance(edit, Open):
            for memory in self.layers.memories:
                memory.pool._free.pop()


class Lenient(ToyStage):
    """Cuts away what it cannot do, instead of refusing it."""

    def step(self, batch: StageBatch) -> Outcome:
        return super().step(replace(batch, rows=tuple(self.mend(row) for row in batch.rows if self.keep(row))))

    def keep(self, row: Row) -> bool:
        return True

    def mend(self, row: Row) -> Row:
        return row


class SkipsUnknown(Lenient):
    def keep(self, row: Row) -> bool:
        return row.seq in self.histories


class StartsAnywhere(Lenient):
    def mend(self, row: Row) -> Row:
        return Row(row.seq, len(self.histories[row.seq].tokens), row.tokens, row.outputs)


class WrapsTokens(Lenient):
    """Takes token ids by their remainder, as an index below 0 is in Python."""

    def mend(self, row: Row) -> Row:
        return Row(row.seq, row.start, tuple(token % 97 for token in row.tokens), row.outputs, row.positions, row.spans)


class WrapsOffsets(Lenient):
    def mend(self, row: Row) -> Row:
        outputs = tuple(output for output in row.outputs if 0 <= output.offset < len(row.tokens))
        return Row(row.seq, row.start, row.tokens, outputs, row.positions, row.spans)


class IgnoresSpans(Lenient):
    def mend(self, row: Row) -> Row:
        return Row(row.seq, row.start, row.tokens, row.outputs, row.positions)


class IgnoresAdapters(ToyStage):
    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Open):
            edit = Open(edit.seq, SequenceSpec(prompt_length=edit.spec.prompt_length, sampling=edit.spec.sampling))
        super().apply_edit(edit)


class Boundless(ToyStage):
    """Takes batches of any size, in parts."""

    def step(self, batch: StageBatch) -> Outcome:
        size, first = self.info.max_batch_tokens, batch.rows[0]
        if len(first.tokens) > size:
            parts = [first.tokens[start : start + size] for start in range(0, len(first.tokens), size)]
            return [
                super(Boundless, self).step(StageBatch((Row(first.seq, self.tokens[first.seq], part),)))
                for part in parts
            ][-1]
        if sum(len(row.tokens) for row in batch.rows) > size:
            return [self.step(StageBatch((row,))) for row in batch.rows][-1]
        return super().step(batch)


class Endless(ToyStage):
    """Goes on beyond the context."""

    @property
    def info(self) -> StageInfo:
        return self._info if not self.batches else replace(self._info, context_length=10**6)


class MovesBeforeItFails(ToyStage):
    """Runs the rows that are fine before it finds the one that is not."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except (KeyError, ValueError):
            for row in batch.rows:
                super().step(StageBatch((row,)))
            raise


class TakesSequencesTwice(ToyStage):
    def step(self, batch: StageBatch) -> Outcome:
        rows = {row.seq: row for row in batch.rows}
        return super().step(replace(batch, rows=tuple(rows.values())))


class DropsTwice(ToyStage):
    def apply_edit(self, edit: Edit) -> None:
        if not isinstance(edit, Drop) or edit.seq in self.histories:
            super().apply_edit(edit)


class OpensTwice(ToyStage):
    """Begins a sequence anew when it is opened again."""

    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Open) and edit.seq in self.histories:
            super().apply_edit(Drop(edit.seq))
        super().apply_edit(edit)


class Cuts(ToyStage):
    """Cuts lengths beyond the end to the end."""

    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Truncate):
            edit = Truncate(edit.seq, min(edit.length, len(self.histories[edit.seq].tokens)))
        super().apply_edit(edit)


class GoesBackTooFar(ToyStage):
    """Lets windows and states be cut to where they cannot go, and stays where it is."""

    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Truncate | Fork):
            seq = edit.seq if isinstance(edit, Truncate) else edit.src
            end = self.tokens.get(seq, 0)
            if edit.length < end and not all(m.pool.can_rewind(seq, edit.length) for m in self.layers.memories):
                return
        super().apply_edit(edit)


class AnswersEarly(ToyStage):
    """Answers on a part that is not the last."""

    def step(self, batch: StageBatch) -> Outcome:
        result = super().step(batch).result
        if self.info.gives and any(row.outputs for row in batch.rows):
            result = replace(
                result, answers=self.answer_rows(batch.rows, [[1] * len(row.tokens) for row in batch.rows])[0]
            )
        return Outcome(result)


FAULTS: list[tuple[Part, tuple[PoolKind, ...], str, str]] = [
    (TakesAtTheBeginning, FULL, "test_stage_describes_itself", "begins with layer 0, but takes"),
    (HasNoVersion, FULL, "test_stage_describes_itself", "has no weights_version"),
    (ForgetsItsWindow, ("window",), "test_stage_describes_itself", "only a window pool has a window"),
    (Changes, FULL, "test_stage_describes_itself", "its info has changed"),
    (CountsItsOwnLayersOnly, FULL, "test_parts_say_how_they_fit_together", "different numbers of layers of the model"),
    (
        CountsPartsFromItsOwnLayer,
        FULL,
        "test_weights_are_named_alike_in_every_split",
        "differs from that in the whole model",
    ),
    (GivesTwice, FULL, "test_parts_say_how_they_fit_together", "but the next one takes"),
    (GivesTwice, FULL, "test_hidden_tensors_are_as_described", "hidden tensors of 6 tokens are"),
    (AnswersEarly, FULL, "test_hidden_tensors_are_as_described", "a part before the last one returns answers"),
    (ClosesOnce, FULL, "test_close_twice_is_harmless", "closed already"),
    (NeverCloses, FULL, "test_closed_stage_refuses_everything", "a closed stage accepts a step"),
    (Shared, FULL, "test_two_stages_share_nothing", "another stage has one of the same handle"),
    (OpensAPage, FULL, "test_opened_sequence_takes_no_page", "no page is free"),
    (SkipsUnknown, FULL, "test_row_of_an_unknown_sequence_is_refused", "did not raise KeyError"),
    (StartsAnywhere, FULL, "test_row_that_starts_elsewhere_is_refused", "did not raise ValueError"),
    (WrapsTokens, FULL, "test_token_that_does_not_exist_is_refused", "did not raise ValueError"),
    (WrapsOffsets, FULL, "test_offset_that_does_not_exist_is_refused", "did not raise ValueError"),
    (Boundless, FULL, "test_batch_that_is_too_large_is_refused", "did not raise ValueError"),
    (TakesSequencesTwice, FULL, "test_sequence_in_two_rows_is_refused", "did not raise ValueError"),
    (Endless, FULL, "test_context_ends_where_the_stage_says", "did not raise ValueError"),
    (IgnoresSpans, FULL, "test_what_the_stage_cannot_do_is_refused", "needs embeddings"),
    (IgnoresAdapters, FULL, "test_what_the_stage_cannot_do_is_refused", "an Open with an adapter did not raise"),
    (MovesBeforeItFails, FULL, "test_row_of_an_unknown_sequence_is_refused", "not KeyError"),
    (DropsTwice, FULL, "test_edits_of_unknown_sequences_are_refused", "Drop(seq=3) did not raise KeyError"),
    (OpensTwice, FULL, "test_edits_of_unknown_sequences_are_refused", "did not raise KeyError"),
    (Cuts, FULL, "test_length_beyond_the_sequence_is_refused", "did not raise ValueError"),
    (GoesBackTooFar, ("window",), "test_length_a_pool_cannot_go_back_to_is_refused", "did not raise Unsupported"),
    (GoesBackTooFar, ("state",), "test_length_a_pool_cannot_go_back_to_is_refused", "did not raise Unsupported"),
]


@pytest.mark.parametrize(("part", "kinds", "test", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_fault_is_found(part: Part, kinds: tuple[PoolKind, ...], test: str, words: str) -> None:
    sizes = Sizes(num_pages=32, state_pages=16)
    assert words in find_fault(part, test, kinds, sizes)
