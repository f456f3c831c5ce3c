"""Faults that show only in company, later or by comparison; and no test of the kit is there that finds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import Draft, Draw, Drawn, Edit, Fork, Outcome, PagePool, Row, SeqId, StageBatch, Truncate
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.memory import Memory
from parallax_core.testing.paged import PagedLayers, States, show_state
from parallax_core.testing.stage import StageConformance
from parallax_core.testing.toy import Toy, ToyStage
from tests.conformance import test_contract_faults, test_draw_faults, test_mask_faults, test_stage_faults
from tests.conformance.faulty import FULL, SIZES, Part, find_fault, make_kit, make_stage
from tests.conformance.harness import list_tests, run_test
from tests.conformance.test_failed_step_faults import BLAMING, FAILING
from tests.conformance.test_stage_faults import LazyOutcome, StartOffByOne


class RowsStoredCrosswise(PagedLayers):
    """Answers a batch as it should, and stores the first row's last note with the second."""

    def run(self, batch: StageBatch) -> States:
        hidden = super().run(batch)
        for memory in self.memories if len(batch.rows) > 1 else ():
            first, second = ((row.seq, row.start + len(row.tokens)) for row in batch.rows[:2])
            memory.write(0, second[0], second[1] - 1, memory.read(0, first[0], first[1] - 1, first[1]))
        return hidden


class WritesLate(ToyStage):
    """What a step writes is there once its result was waited for."""

    def step(self, batch: StageBatch) -> Any:
        result = super().step(batch).result
        (memory,) = self.layers.memories
        spans = [(row.seq, row.start, row.start + len(row.tokens)) for row in batch.rows]
        notes = [memory.read(0, *span) for span in spans]
        for (seq, start, _), written in zip(spans, notes, strict=True):
            memory.write(0, seq, start, [0] * len(written))

        def finish() -> Any:
            for (seq, start, _), written in zip(spans, notes, strict=True):
                if seq in memory.pool:
                    memory.write(0, seq, start, written)
            return result

        return LazyOutcome(finish)


class OneBuffer(ToyStage):
    """Keeps one result, that of the newest step."""

    def step(self, batch: StageBatch) -> Any:
        self.newest = super().step(batch).result
        return LazyOutcome(lambda: self.newest)


class FreeingPool(PagePool):
    """Hands out the pages of what is dropped, whoever else holds them."""

    def drop(self, seq: SeqId) -> None:
        shared = [page for page in self._holdings[seq].pages if self._refs[page] > 1]
        super().drop(seq)
        for page in shared:
            if page not in self._free:
                self._free.append(page)


class SharedPagesFreed(Memory):
    pool_type = FreeingPool


class RootCopied(Memory):
    """Copies the tail of a fork's fork from the first of the line."""

    def edit(self, edit: Edit) -> None:
        roots = self.__dict__.setdefault("roots", {})
        copies = self.pool.edit(edit)
        if isinstance(edit, Fork):
            root = roots.setdefault(edit.dst, roots.get(edit.src, edit.src))
            pages = self.pool.pages(root)[1] if root in self.pool else ()
            copies = [replace(copy, src=pages[-1]) if pages else copy for copy in copies]
        self.apply_copies(copies)


class HiddenOfTheBatch(ToyStage):
    """Gives rows of a batch one hidden state."""

    def answer_rows(self, rows: Sequence[Row], hidden: States) -> Any:
        answers, tensors = super().answer_rows(rows, hidden)
        return answers, tensors if len(rows) == 1 else tuple(show_state(7) for _ in tensors)


class ForkForgetsOutput(ToyStage):
    """Counts for a fork's penalties only what was output since."""

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        begins = {fork.dst: fork.length for fork in self.forks}
        begin = begins.get(row.seq, 0)
        return [
            replace(draft, output=[-1] * (begin - len(draft.prompt)) + [*draft.output[begin - len(draft.prompt) :]])
            if begin > len(draft.prompt)
            else draft
            for draft in super().make_drafts(row, output)
        ]


class AnswersPrefill(ToyStage):
    """Draws after every row, asked or not."""

    def step(self, batch: StageBatch) -> Outcome:
        rows = [Row(row.seq, row.start, row.tokens, row.outputs or (Draw(len(row.tokens) - 1),)) for row in batch.rows]
        return super().step(replace(batch, rows=tuple(rows)))


class NeedsRows(ToyStage):
    def step(self, batch: StageBatch) -> Outcome:
        if not batch.rows:
            raise ValueError("there is nothing to do")
        return super().step(batch)


class CutsOneMore(ToyStage):
    """Cuts a token even when a sequence is cut at its end."""

    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Truncate) and edit.length and edit.length == self.tokens.get(edit.seq):
            edit = Truncate(edit.seq, edit.length - 1)
        super().apply_edit(edit)


ONE: tuple[PoolKind, ...] = ("full",)
FAULTS: list[tuple[Part, tuple[PoolKind, ...], str, str]] = [
    (StartOffByOne, FULL, "test_prompt_after_a_first_chunk_of_any_size_is_the_same", "a prompt that goes on at 1"),
    (RowsStoredCrosswise, FULL, "test_batches_go_on_as_they_began", "a row after a batch gives other tokens"),
    (WritesLate, ONE, "test_chunks_in_flight_equal_chunks_waited_for", "chunks in flight at once differ"),
    (OneBuffer, FULL, "test_decodes_in_flight_equal_decodes_waited_for", "decodes in flight together differ"),
    (SharedPagesFreed, FULL, "test_dropped_fork_leaves_its_source", "changes when its forks are dropped"),
    (RootCopied, FULL, "test_forks_of_forks_are_forks", "a fork of a fork of a fork differs"),
    (HiddenOfTheBatch, FULL, "test_hidden_states_are_the_same_in_a_batch", "hidden states in a batch differ"),
    (ForkForgetsOutput, FULL, "test_penalties_hold_for_chunks_and_decodes", "how the history came to the stage"),
    (AnswersPrefill, FULL, "test_prefill_rows_have_no_answers", "3 answers instead of 1"),
    (NeedsRows, FULL, "test_step_without_rows_does_nothing", "there is nothing to do"),
    (CutsOneMore, FULL, "test_truncate_at_the_end_changes_nothing", "is not within the 5 tokens"),
]


@pytest.mark.parametrize(("part", "kinds", "test", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_fault_is_found(part: Part, kinds: tuple[PoolKind, ...], test: str, words: str) -> None:
    assert words in find_fault(part, test, kinds)


class ShiftedAltogether(PagedLayers):
    """Counts positions from 1, always."""

    def run(self, batch: StageBatch) -> States:
        rows = [
            Row(
                row.seq,
                row.start,
                row.tokens,
                row.outputs,
                tuple(range(row.start + 1, row.start + 1 + len(row.tokens))),
            )
            for row in batch.rows
        ]
        return super().run(replace(batch, rows=tuple(rows)))


COMPARING = "test_logits_are_those_of_the_other_implementation"


def test_another_model_is_found_by_comparison() -> None:
    assert find_fault(ShiftedAltogether, "test_chunked_prefill_equals_at_once") == ""
    kit = make_kit(make_stage(ShiftedAltogether), FULL, SIZES)
    comparing = type("Comparing", (kit,), {"compute_logits": lambda _, tokens: Toy(FULL).logits(tokens)})
    assert "the model is another one after 1 tokens" in run_test(comparing, COMPARING)


def test_every_test_of_the_kit_finds_some_fault() -> None:
    rows = [*test_stage_faults.FAULTS, *test_contract_faults.FAULTS, *FAULTS]
    named = {test for _, _, test, _ in rows} | {test for _, test, _ in test_draw_faults.FAULTS} | {COMPARING}
    named |= {test for _, test, _ in test_mask_faults.FAULTS}
    named |= {FAILING, BLAMING}
    named |= {"test_full_pool_refuses_a_fork_and_changes_nothing", "test_full_pool_refuses_a_step_and_changes_nothing"}
    assert set(list_tests(StageConformance)) - named == set()


class Noisy(ToyStage):
    """Adds to log-probabilities what rounding might, and lets it decide a draw between tokens that are that near."""

    noise = 2e-4

    def step(self, batch: StageBatch) -> Outcome:
        result = super().step(batch).result
        sign = 1 if len(batch.rows) > 1 else -1
        return Outcome(replace(result, answers=tuple(map(self.blur, result.answers, [sign] * len(result.answers)))))

    def blur(self, answer: Any, sign: int) -> Any:
        if not isinstance(answer, Drawn) or not answer.top:
            return answer
        top = tuple((token, score + sign * self.noise) for token, score in answer.top)
        near = len(top) > 1 and sign > 0 and top[0][1] - top[1][1] < self.near
        tokens = (top[1][0],) if near and answer.tokens == (top[0][0],) else answer.tokens
        return Drawn(tokens, tuple(score + sign * self.noise for score in answer.logprobs), top)

    near = 1e-2


def blur_kit(**changes: Any) -> type[StageConformance]:
    kit = make_kit(Noisy, FULL, SIZES)
    return type("NoisyKit", (kit,), changes)


def test_rounding_is_accepted_where_the_author_allows_it(capsys: pytest.CaptureFixture[str]) -> None:
    tests = ("test_batch_equals_alone", "test_batches_go_on_as_they_began", "test_every_split_equals_the_whole")
    assert [run_test(blur_kit(exact=False, margin=2e-2), test) for test in tests] == [""] * 3
    assert "differ" in run_test(blur_kit(exact=True), tests[0])
    assert "differ" in run_test(blur_kit(exact=False, margin=1e-4), tests[0])


def test_difference_that_is_accepted_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    kit = blur_kit(exact=False, margin=0.5)()
    near, far = Drawn((4,), (-1.0,), ((4, -1.0), (5, -1.2))), Drawn((4,), (-1.0,), ((4, -1.0), (5, -1.6)))
    found = Drawn((5,), (-1.1,), ((5, -1.1), (4, -1.15)))
    kit.compare([found], [near], "a draw")
    assert "accepted, for the two best are 0.2 apart" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="a draw: at answer 0"):
        kit.compare([found], [far], "a draw")
    with pytest.raises(AssertionError, match="1 answers instead of 2"):
        kit.compare([found], [found, found], "a draw")
    assert capsys.readouterr().out == ""


def test_stage_that_is_too_small_or_too_large_is_sent_back() -> None:
    for sizes in (replace(SIZES, num_pages=4), replace(SIZES, num_pages=5000), replace(SIZES, max_batch_tokens=4)):
        found = run_test(make_kit(ToyStage, FULL, sizes), "test_batch_equals_alone")
        assert "open_stage gives a" in found
