"""Each fault in what a stage does when a step or an edit fails is planted into the healthy toy, for the kit to find."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from math import isnan

import pytest

from parallax_core.api import (
    BackendFailed,
    Drop,
    Edit,
    Fork,
    LayerRange,
    Outcome,
    OutOfPages,
    SeqId,
    StageBatch,
    StageLost,
    Tensor,
    TensorSpec,
)
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.paged import pack_states, unpack_states
from parallax_core.testing.toy import Sizes, Toy, ToyStage, describe_toy
from tests.conformance.faulty import FULL, Part, find_fault, make_kit
from tests.conformance.harness import run_test

FAILING = "test_step_that_fails_leaves_everything_as_it_was"


BLAMING = "test_hidden_states_that_are_no_numbers_are_laid_to_their_sequence"


class PagesKept(ToyStage):
    """Has taken pages by the time it fails."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except BackendFailed:
            for memory in self.layers.memories:
                memory.extend(batch.rows[-1])
            raise


class StatesKept(ToyStage):
    """Has written states by the time it fails."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except BackendFailed:
            marks = [memory.pool.save([row.seq for row in batch.rows]) for memory in self.layers.memories]
            self.layers.run(batch)
            for memory, mark in zip(self.layers.memories, marks, strict=True):
                memory.pool.restore(mark)
            raise


class TokensKept(ToyStage):
    """Has appended the tokens by the time it fails."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except BackendFailed:
            for row in batch.rows:
                self.histories[row.seq].tokens += row.tokens
            raise


class Resigned(ToyStage):
    """Gives up at the first failure."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except BackendFailed as error:
            raise StageLost(error.message) from error


@pytest.mark.parametrize(
    ("part", "kinds", "words"),
    [
        (PagesKept, FULL, "after a failed step, (12,) pages are free instead of (13,)"),
        (StatesKept, ("state", "state"), "a sequence differs after a failed step"),
        (TokensKept, FULL, "raised ValueError (row of sequence 3: it starts at 3, but the sequence's length is 6)"),
        (Resigned, FULL, "raised StageLost (step 0 fails on purpose), not BackendFailed"),
    ],
)
def test_fault_after_a_failed_step_is_found(part: Part, kinds: tuple[PoolKind, ...], words: str) -> None:
    assert words in find_fault(part, FAILING, kinds)


FLOAT = TensorSpec(2, "float32")


class FloatToy(ToyStage):
    """A toy whose hidden states are two floats each, and which refuses what is no number in them."""

    def __init__(self, toy: Toy, layers: LayerRange | None = None, sizes: Sizes | None = None) -> None:
        super().__init__(toy, layers, sizes)
        info = self._info
        self._info = replace(info, takes=(FLOAT,) * len(info.takes), gives=(FLOAT,) * len(info.gives))

    def step(self, batch: StageBatch) -> Outcome:
        whole, info = self._info, describe_toy(self.toy, self._info.layers, Sizes())
        hidden = []
        if batch.hidden:
            numbers = struct.unpack(f"<{batch.hidden[0].shape[0] * 2}f", batch.hidden[0].data)
            self.refuse_others(batch, numbers)
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            hidden = [pack_states(round(high) * 2**12 + round(low) for high, low in pairs)]
        self._info = replace(whole, takes=info.takes, gives=info.gives)
        try:
            result = super().step(replace(batch, hidden=tuple(hidden))).result
        finally:
            self._info = whole
        if not whole.gives:
            return Outcome(result)
        states = unpack_states(result.tensors[0])
        floats = [float(part) for state in states for part in divmod(state, 2**12)]
        tensor = Tensor("float32", (len(states), 2), struct.pack(f"<{len(floats)}f", *floats))
        return Outcome(replace(result, tensors=(tensor,)))

    def refuse_others(self, batch: StageBatch, numbers: Sequence[float]) -> None:
        seqs = [row.seq for row in batch.rows for _ in row.tokens for _ in range(2)]
        bad = tuple(dict.fromkeys(seq for seq, number in zip(seqs, numbers, strict=True) if isnan(number)))
        if bad:
            raise BackendFailed("these are no numbers", sequences=self.blame(batch, bad))

    def blame(self, batch: StageBatch, bad: tuple[SeqId, ...]) -> tuple[SeqId, ...]:
        return bad


class BlamesNobody(FloatToy):
    """Does not say whose it is."""

    def blame(self, batch: StageBatch, bad: tuple[SeqId, ...]) -> tuple[SeqId, ...]:
        return ()


class BlamesAll(FloatToy):
    """Lays it to everybody."""

    def blame(self, batch: StageBatch, bad: tuple[SeqId, ...]) -> tuple[SeqId, ...]:
        return tuple(row.seq for row in batch.rows)


@pytest.mark.parametrize(
    ("part", "words"),
    [(FloatToy, ""), (BlamesNobody, "and the error names none"), (BlamesAll, "and the error names (2, 3)")],
)
def test_blame_for_what_is_no_number_is_looked_at(part: type[FloatToy], words: str) -> None:
    kit = make_kit(part, FULL, Sizes(num_pages=16))
    found = run_test(kit, BLAMING)
    assert (words in found) if words else found == ""


class OverfullStep(ToyStage):
    """Takes the pages of the first rows before it finds out that they do not suffice for all."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except OutOfPages:
            for row in batch.rows:
                for memory in self.layers.memories:
                    memory.extend(row)
            raise


def test_step_that_takes_pages_before_it_fails_is_found() -> None:
    found = find_fault(OverfullStep, "test_full_pool_refuses_a_step_and_changes_nothing", FULL)
    assert "step after one was refused for want of pages: the stage has" in found


class HalfFork(ToyStage):
    """Leaves a fork in the first pool when the second is full."""

    def apply_edit(self, edit: Edit) -> None:
        if isinstance(edit, Drop) and edit.seq not in self.histories:
            return
        if isinstance(edit, Fork):
            for memory in self.layers.memories:
                if not memory.pool.num_free:
                    raise OutOfPages(1, 0)
                memory.edit(edit)
            for memory in self.layers.memories:
                memory.edit(Drop(edit.dst))
        super().apply_edit(edit)


def test_fork_that_is_half_made_is_found() -> None:
    sizes = Sizes(num_pages=16, state_pages=8)
    found = find_fault(HalfFork, "test_full_pool_refuses_a_fork_and_changes_nothing", ("full", "state"), sizes)
    assert "is open already" in found
