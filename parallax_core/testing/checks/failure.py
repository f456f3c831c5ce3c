"""Tests that a step whose computation fails leaves the stage unchanged."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from parallax_core.api import BackendFailed, SeqId, Stage, StageBatch, Tensor
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import broken, expect

LEAVES = "A step that raises leaves every sequence at its length before the step."
FAILED = "if the computation failed, or the stage is closed."
AT_FAULT = "``sequences`` are those at fault for a failed step, if the backend knows them"
TRIALS = 2
FLOATS = ("float32", "float16", "bfloat16")


class FailureChecks(StageSubject):
    """Tests of steps that fail half way, and of the sequences that an error names."""

    def plant_failure(self, stage: Stage) -> AbstractContextManager[object] | None:  # noqa: ARG002 -- for those who can
        """Return a context in which computed steps of ``stage`` fail, or None if that is impossible."""
        return None

    def test_step_that_fails_leaves_everything_as_it_was(self) -> None:
        """After failed steps, the pages are unchanged and every sequence continues as if nothing had happened."""
        with self.open_whole() as chain:
            size = max([1, *(pool.info.page_size for pool in chain.pools[0] if pool.info.kind != "state")])
            length = len(self.make_tokens(chain, 4))
            for start in sorted({max(1, min(size - 1, length - 4)), length - 4}):
                if self.plant_failure(chain.stages[0]) is not None:
                    self._check_failure(chain, start)

    def test_hidden_states_that_are_no_numbers_are_laid_to_their_sequence(self) -> None:
        """If NaN makes a step fail, the error names its sequence, and the other sequences are unchanged."""
        for cuts in self.list_splits()[:1]:
            with self.open_parts(cuts[:1]) as chain:
                if all(spec.dtype in FLOATS for spec in chain.last.takes):
                    self._check_blame(chain)

    def _check_failure(self, chain: Chain, start: int) -> None:
        stage = chain.stages[0]
        tokens, others = (self.make_tokens(chain, 4, seed)[: start + 4] for seed in range(2))
        expected = chain.trace_new(tokens), chain.trace_new(others)
        first, second, third = chain.open(), chain.open(), chain.open()
        chain.feed(first, tokens[:start])
        chain.feed(second, others[:1])
        fork = chain.fork(first, start)
        rows = (
            chain.row(first, tokens[start : start + 3], *chain.draws(3)),
            chain.row(second, others[1:3]),
            chain.row(third, tokens[:1], *chain.draws(1)),
        )
        planted = self.plant_failure(stage)
        assert planted is not None, "plant_failure returned None the second time"
        with planted:
            for _ in range(TRIALS):
                with expect(BackendFailed, "a step whose computation fails", FAILED):
                    stage.step(StageBatch(rows)).wait()
        (result,) = chain.run()
        left = broken(f"after a failed step, {result.free} pages are free instead of {chain.free[0]}", LEAVES)
        assert [result.free] == chain.free, left
        fault = broken("a sequence differs after a failed step", LEAVES)
        self.compare(chain.trace(first, tokens[start:]), expected[0][start:], fault)
        self.compare(chain.trace(fork, tokens[start:]), expected[0][start:], fault)
        self.compare(chain.trace(second, others[1:]), expected[1][1:], fault)
        self.compare(chain.trace(third, tokens), expected[0], fault)
        chain.drop(first, second, third, fork)

    def _check_blame(self, chain: Chain) -> None:
        tokens = self.make_tokens(chain, 2)[:6]
        expected = chain.trace_new(tokens)
        good, bad = chain.open(), chain.open()
        chain.feed(good, tokens[:2])
        rows = chain.row(good, tokens[2:4]), chain.row(bad, tokens[:2], *chain.draws(2))
        hidden = chain.stages[0].step(StageBatch(rows)).wait().tensors
        poisoned = StageBatch(rows, tuple(poison(tensor, 2) for tensor in hidden))
        if (named := find_blamed(chain.stages[1], poisoned)) is None:
            return
        fault = f"the hidden states of sequence {bad} are NaN, and the error names {named or 'none'}"
        assert named == (bad,), broken(fault, AT_FAULT)
        result = chain.stages[1].step(StageBatch(rows, hidden)).wait()
        chain.account(*rows)
        left = f"after a step that failed, {result.free} pages are free instead of {chain.free[1]}"
        assert result.free == chain.free[1], broken(left, LEAVES)
        fault = broken("a sequence differs after a failed step", LEAVES)
        self.compare(chain.trace(good, tokens[4:]), expected[4:], fault)


def find_blamed(stage: Stage, batch: StageBatch) -> tuple[SeqId, ...] | None:
    """Return the sequences that a step names as it fails; None if it does not fail."""
    try:
        stage.step(batch).wait()
    except BackendFailed as error:
        return error.sequences
    return None


def poison(tensor: Tensor, first: int) -> Tensor:
    """Return a tensor of floats whose rows from ``first`` on are NaN."""
    data = bytearray(memoryview(tensor.data).cast("B"))
    start = len(data) // tensor.shape[0] * first
    data[start:] = b"\xff" * (len(data) - start)
    return replace(tensor, data=bytes(data))
