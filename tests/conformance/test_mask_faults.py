"""The kit finds stages that handle masks wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import (
    Answer,
    BackendFailed,
    Draw,
    Drawn,
    Outcome,
    Output,
    Row,
    StageBatch,
    Tensor,
    best,
    logprobs,
)
from parallax_core.testing.arithmetic import score_tokens
from parallax_core.testing.masks import GivenMasks
from parallax_core.testing.toy import ToyStage
from tests.conformance.faulty import find_fault


class MaskStage(ToyStage):
    """Changes the masks of a step."""

    def step(self, batch: StageBatch) -> Outcome:
        if batch.masks is None:
            return super().step(batch)
        return super().step(replace(batch, masks=GivenMasks(self.change(batch.masks.wait()))))

    def change(self, masks: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        return masks


class Unmasked(MaskStage):
    def change(self, masks: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        del masks
        return {}


class BitsReversed(MaskStage):
    """Counts the bits of a byte from the highest."""

    def change(self, masks: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        return {number: replace(mask, data=bytes(map(_turn, bytes(mask.data)))) for number, mask in masks.items()}


class MasksInOrder(MaskStage):
    """Gives the masks to the first outputs, whether these wait for one or not."""

    def change(self, masks: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        return dict(enumerate(masks.values()))


class FirstMaskForAll(MaskStage):
    def change(self, masks: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        return dict.fromkeys(masks, next(iter(masks.values())))


class FirstDrawMasked(ToyStage):
    """Forgets the mask after the first draw of a count."""

    def answer_output(self, row: Row, output: Output, state: int, num_tensors: int) -> Answer:
        answer: Any = super().answer_output(row, output, state, num_tensors)
        if isinstance(output, Draw) and output.count > 1:
            self.masks = {}
            free: Any = super().answer_output(row, output, state, num_tensors)
            return Drawn(answer.tokens[:1] + free.tokens[1:])
        return answer  # type: ignore[no-any-return]


class RawScores(ToyStage):
    """Takes log-probabilities before the mask."""

    def answer_output(self, row: Row, output: Output, state: int, num_tensors: int) -> Answer:
        answer: Any = super().answer_output(row, output, state, num_tensors)
        if isinstance(output, Draw) and output.masked and output.top >= 0:
            found = logprobs(score_tokens(state, self.toy.vocab))
            return Drawn(answer.tokens, tuple(found[token] for token in answer.tokens), best(found, output.top))
        return answer  # type: ignore[no-any-return]


class GoesOnWithoutMasks(ToyStage):
    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except BackendFailed:
            return super().step(replace(batch, masks=GivenMasks({})))


class KeepsRowsWithoutMasks(ToyStage):
    """Has added the tokens of a step when it asks for masks that do not come."""

    def step(self, batch: StageBatch) -> Outcome:
        try:
            return super().step(batch)
        except BackendFailed:
            for row in batch.rows:
                self.histories[row.seq].tokens += row.tokens
            raise


class LastMasks(MaskStage):
    """Takes the masks that it saw first, whatever the step."""

    def change(self, masks: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        kept: Mapping[int, Tensor] = self.__dict__.setdefault("kept", masks)
        return kept


class NeedsNoMasks(ToyStage):
    def step(self, batch: StageBatch) -> Outcome:
        return super().step(batch if batch.masks is not None else replace(batch, masks=GivenMasks({})))


def _turn(byte: int) -> int:
    return int(f"{byte:08b}"[::-1], 2)


FAULTS: list[tuple[type[ToyStage], str, str]] = [
    (Unmasked, "test_masked_draw_takes_only_what_the_mask_allows", "lets"),
    (BitsReversed, "test_masked_draw_takes_only_what_the_mask_allows", "lets"),
    (MasksInOrder, "test_each_draw_has_its_own_mask", "draws under masks of their own are"),
    (FirstMaskForAll, "test_each_draw_has_its_own_mask", "draws under masks of their own are"),
    (FirstDrawMasked, "test_draws_of_one_output_share_its_mask", "draws under a mask of"),
    (RawScores, "test_logprobs_are_those_under_the_mask", "the best tokens under a mask"),
    (Unmasked, "test_masks_may_come_late", "a late mask of"),
    (GoesOnWithoutMasks, "test_missing_masks_fail_the_step_alone", "did not raise BackendFailed"),
    (KeepsRowsWithoutMasks, "test_missing_masks_fail_the_step_alone", "length is 4"),
    (LastMasks, "test_masks_of_steps_in_flight_are_not_mixed_up", "steps in flight draw"),
    (NeedsNoMasks, "test_masked_draw_without_masks_is_refused", "did not raise ValueError"),
]


@pytest.mark.parametrize(
    ("stage", "test", "fault"),
    FAULTS,
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_kit_finds_a_stage_that_handles_masks_wrongly(stage: type[ToyStage], test: str, fault: str) -> None:
    assert fault in find_fault(stage, test)
