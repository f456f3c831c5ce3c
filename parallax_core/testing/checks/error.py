"""Tests that invalid steps and edits raise the contract's errors and change nothing."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_core.api import (
    Draw,
    Drop,
    Edit,
    Fork,
    Hidden,
    Open,
    Output,
    Row,
    Score,
    SequenceSpec,
    Span,
    StageBatch,
    Truncate,
    Unsupported,
)
from parallax_core.testing.checks.chain import GREEDY, Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import expect

NOT_OPEN = "if a sequence is not open"
MISFIT = "if the batch is too large, a row does not start at its sequence's length, or a token, position"
NO_CAPABILITY = "The optional capabilities of a stage."
SPEC = SequenceSpec(prompt_length=1, sampling=GREEDY)


class ErrorChecks(StageSubject):
    """Tests of invalid steps and edits."""

    def test_row_of_an_unknown_sequence_is_refused(self) -> None:
        """A handle that was never opened, or was dropped, raises KeyError; the rows beside it stay where they are."""
        with self.open_whole() as chain:
            gone = chain.open()
            chain.feed(gone, [1])
            chain.drop(gone)
            self._check_refused(chain, KeyError, [Row(seq, 0, (1,)) for seq in (gone, chain.new_handle())], NOT_OPEN)

    def test_row_that_starts_elsewhere_is_refused(self) -> None:
        """A start before or after the sequence's length raises ValueError; the rows beside it stay where they are."""
        with self.open_whole() as chain:
            seq = chain.open()
            chain.feed(seq, [1, 2])
            self._check_refused(chain, ValueError, [Row(seq, start, (1,)) for start in (0, 1, 3)], MISFIT)

    def test_token_that_does_not_exist_is_refused(self) -> None:
        """Token ids below 0 or from the vocabulary's size on raise ValueError."""
        with self.open_whole() as chain:
            seq, size = chain.open(), chain.first.vocab_size
            self._check_refused(chain, ValueError, [Row(seq, 0, (1, token)) for token in (-1, size)], MISFIT)

    def test_offset_that_does_not_exist_is_refused(self) -> None:
        """An output at an offset that is not in its row raises ValueError."""
        with self.open_whole() as chain:
            seq = chain.open()
            rows = [Row(seq, 0, (1, 2), (Draw(offset),)) for offset in (-1, 2)]
            self._check_refused(chain, ValueError, rows, MISFIT)

    def test_batch_that_is_too_large_is_refused(self) -> None:
        """More tokens than `StageInfo.max_batch_tokens` raise ValueError."""
        with self.open_whole() as chain:
            row = Row(chain.open(), 0, (1,) * chain.first.max_batch_tokens)
            self._check_refused(chain, ValueError, [row], MISFIT)

    def test_sequence_in_two_rows_is_refused(self) -> None:
        """A batch holds a sequence at most once; twice raises ValueError."""
        with self.open_whole() as chain:
            seq = chain.open()
            for start in (0, 1):
                with expect(ValueError, "a sequence in two rows of a batch", MISFIT):
                    chain.stages[0].step(StageBatch((Row(seq, 0, (1,)), Row(seq, start, (2,)))))
            tokens = self.make_tokens(chain, 2)[:4]
            self.compare(chain.trace(seq, tokens), chain.trace_new(tokens), "a step that was refused moved a row")

    def test_edits_of_unknown_sequences_are_refused(self) -> None:
        """Fork, Truncate and Drop of a sequence that is not open, and Open and Fork to one that is, raise KeyError."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)[:6]
            seq, other, gone, never = chain.open(), chain.open(), chain.open(), chain.new_handle()
            chain.feed(seq, tokens[:3])
            chain.drop(gone)
            wrong: list[Edit] = [Open(seq, SPEC), Fork(seq, other, 3), Fork(never, chain.new_handle(), 0)]
            wrong += [edit for name in (gone, never) for edit in (Truncate(name, 0), Drop(name))]
            for edit in wrong:
                with expect(KeyError, f"{edit}", NOT_OPEN):
                    chain.stages[0].edit([edit])
            expected = chain.trace_new(tokens)
            self.compare(chain.trace(seq, tokens[3:]), expected[3:], "an edit that was refused changed a sequence")
            self.compare(chain.trace(other, tokens), expected, "an edit that was refused changed a sequence")

    def test_what_the_stage_cannot_do_is_refused(self) -> None:
        """A row or edit that needs a missing capability raises Unsupported and is never silently ignored."""
        with self.open_whole() as chain:
            seq = chain.open()
            rows: Mapping[str, Row] = {
                "logprobs": Row(seq, 0, (1,), (Score(0, 2),)),
                "hidden": Row(seq, 0, (1,), (Hidden(0),)),
                "hidden_sums": Row(seq, 0, (1,), (Hidden(0, 1),)),
                "positions": Row(seq, 0, (1, 2), positions=(0, 2)),
                "embeddings": Row(seq, 0, (1,), spans=(Span(0, 1, 0),)),
            }
            for name in sorted(rows.keys() - chain.first.capabilities):
                with expect(Unsupported, f"a row that needs {name}, which the stage does not name,", NO_CAPABILITY):
                    chain.stages[0].step(StageBatch((rows[name],)))
            if "adapters" not in chain.first.capabilities:
                spec = SequenceSpec(prompt_length=1, sampling=GREEDY, adapter="none-such")
                with expect(Unsupported, "an Open with an adapter", NO_CAPABILITY):
                    chain.stages[0].edit([Open(chain.new_handle(), spec)])

    def test_context_ends_where_the_stage_says(self) -> None:
        """A token beyond `StageInfo.context_length` raises ValueError, if the pools have room for it."""
        with self.open_whole() as chain:
            length = chain.first.context_length
            if length > 4 * self.longest or not self._fits_context(chain, length):
                return
            seq = chain.open()
            chain.feed(seq, [1] * length)
            with expect(ValueError, f"a row at position {length} of a context of {length}", MISFIT):
                chain.stages[0].step(StageBatch((Row(seq, length, (1,), (Draw(0),)),)))

    def _fits_context(self, chain: Chain, length: int) -> bool:
        return all(
            pool.info.kind in {"window", "state"} or pool.info.num_pages * pool.info.page_size > length
            for pool in chain.pools[0]
        )

    def _check_refused(self, chain: Chain, kind: type[Exception], wrong: list[Row], promise: str) -> None:
        """Put each row between valid ones, and check that those have not advanced."""
        tokens = self.make_tokens(chain, 4)[:4]
        expected = chain.trace_new(tokens)
        first, second = chain.open(), chain.open()
        chain.feed(first, tokens[:2])
        outputs: tuple[Output, ...] = (Draw(0),)
        good = [Row(first, 2, tokens[2:3], outputs), Row(second, 0, tokens[:1], outputs)]
        for row in wrong:
            for order in ([good[0], row, good[1]], [row, *good], [*good, row]):
                with expect(kind, f"{describe(row)} in a batch of three", promise):
                    chain.stages[0].step(StageBatch(tuple(order))).wait()
        fault = f"a step that was refused for {describe(wrong[0])} moved the rows beside it"
        self.compare(chain.trace(first, tokens[2:]), expected[2:], fault)
        self.compare(chain.trace(second, tokens), expected, fault)
        self._check_unmoved(chain, wrong, tokens)

    def _check_unmoved(self, chain: Chain, wrong: list[Row], tokens: tuple[int, ...]) -> None:
        for seq in {row.seq for row in wrong if row.seq in chain.lengths}:
            prefix = [1, 2][: chain.lengths[seq]]
            expected = chain.trace_new((*prefix, *tokens))[len(prefix) :]
            self.compare(chain.trace(seq, tokens), expected, "a row that was refused has left something")


def describe(row: Row) -> str:
    """Return a short description of a row."""
    tokens = row.tokens if len(row.tokens) < 4 else f"{len(row.tokens)} tokens"  # noqa: PLR2004
    return f"a row of sequence {row.seq} from {row.start}, {tokens}, outputs {list(row.outputs)}"
