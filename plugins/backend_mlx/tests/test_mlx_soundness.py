"""What is not a number is refused where it turns up, and leaves nothing behind that others could see."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.soundness import check_scores
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import (
    Answer,
    BackendFailed,
    Draw,
    LayerRange,
    Open,
    Row,
    Sampling,
    Score,
    SeqId,
    SequenceSpec,
    StageBatch,
    StagePlan,
    Tensor,
)

GOOD, BAD = SeqId(1), SeqId(2)
POISON = 90
"""A token whose embedding has one that is no number; none of those that a model is tried with when it is loaded."""
WIDTH = 32
SPEC = SequenceSpec(prompt_length=2, sampling=Sampling(temperature=0))


@pytest.fixture(scope="module")
def poisoned(make_llama: Callable[..., Path]) -> Path:
    folder = make_llama(tie_word_embeddings=False)
    path = str(folder / "model.safetensors")
    weights = dict(mx.load(path).items())  # type: ignore[union-attr]
    weights["model.embed_tokens.weight"][POISON, 0] = math.nan
    mx.eval(weights)
    mx.save_safetensors(path, weights, {"format": "pt"})
    return folder


@pytest.fixture
def open_stage(poisoned: Path) -> Iterator[Callable[..., MlxStage]]:
    stages: list[MlxStage] = []

    def make(layers: LayerRange | None = None) -> MlxStage:
        stages.append(MlxBackend().open_ordinary(StagePlan(model=poisoned, layers=layers)))
        stages[-1].edit([Open(seq, SPEC) for seq in (GOOD, BAD)])
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def make_rows(poison: int, start: int = 0) -> tuple[Row, ...]:
    """Return a good row, and a longer one with some token in it, so that the good one is padded."""
    return (
        Row(GOOD, start, (5, 6), (Draw(1, 1, 97),)),
        Row(BAD, start, (7, poison, 8), (Draw(2),)),
    )


def run_good(stage: MlxStage, start: int) -> list[Answer]:
    """Run sound rows of different lengths, and then one that is much longer than the other."""
    found = list(stage.step(StageBatch(make_rows(9, start))).wait().answers)
    rows = (Row(GOOD, start + 2, (5,), (Draw(0, 1, 97),)), Row(BAD, start + 3, (11,), (Draw(0, 1, 97),)))
    return found + list(stage.step(StageBatch(rows)).wait().answers)


@pytest.mark.parametrize("output", [Draw(2), Score(2, 5)])
def test_scores_that_are_no_numbers_are_not_drawn_from(
    open_stage: Callable[..., MlxStage], output: Draw | Score
) -> None:
    stage = open_stage()
    rows = (make_rows(POISON)[0], Row(BAD, 0, (7, POISON, 8), (output,)))
    free = stage.step(StageBatch(())).wait().free
    with pytest.raises(BackendFailed, match="of sequence 2 are not finite numbers"):
        stage.step(StageBatch(rows))
    assert stage.step(StageBatch(())).wait().free == free


def test_others_are_as_if_the_poison_had_not_been(open_stage: Callable[..., MlxStage]) -> None:
    stage, clean = open_stage(), open_stage()
    with pytest.raises(BackendFailed):
        stage.step(StageBatch(make_rows(POISON)))
    assert run_good(stage, 0) == run_good(clean, 0)


def test_prefill_that_shows_nobody_its_scores_is_refused_too(open_stage: Callable[..., MlxStage]) -> None:
    """Else its keys would be there until somebody draws, for other rows to be padded with."""
    stage, clean = open_stage(), open_stage()
    for rows in ((Row(BAD, 0, (POISON,) * 3),), (Row(BAD, 0, (POISON,)), Row(GOOD, 0, (5, 6, 7)))):
        with pytest.raises(BackendFailed, match="the keys of sequence 2"):
            stage.step(StageBatch(rows))
    assert run_good(stage, 0) == run_good(clean, 0)


def test_first_stage_keeps_what_is_no_number_to_itself(open_stage: Callable[..., MlxStage]) -> None:
    stage = open_stage(LayerRange(0, 2))
    with pytest.raises(BackendFailed, match="of sequence 2 are not finite"):
        stage.step(StageBatch((Row(GOOD, 0, (5, 6)), Row(BAD, 0, (7, POISON)))))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("layers", [LayerRange(1, 2), LayerRange(1, 3)])
def test_stage_takes_numbers_only(open_stage: Callable[..., MlxStage], layers: LayerRange, value: float) -> None:
    stage = open_stage(layers)
    numbers = [0.5] * WIDTH * 3
    numbers[WIDTH * 2 - 1] = value
    hidden = (Tensor("float32", (3, WIDTH), struct.pack(f"<{len(numbers)}f", *numbers)),)
    rows = (Row(GOOD, 0, (5,)), Row(BAD, 0, (7, 8)))
    with pytest.raises(BackendFailed, match="the hidden states given to this stage of sequence 2 are"):
        stage.step(StageBatch(rows, hidden))


def test_tokens_may_be_forbidden_by_the_model_but_not_all_of_them() -> None:
    inf, nan = math.inf, math.nan
    logits = mx.array([[1.0, -inf, 2], [1, inf, 2], [1, nan, 2], [-inf, -inf, -inf], [nan, nan, nan], [0, 0, 0]])
    assert check_scores(logits).tolist() == [True, False, False, False, False, True]
