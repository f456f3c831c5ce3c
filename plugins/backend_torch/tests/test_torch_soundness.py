"""Numbers that are none: they are refused, and never drawn from."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
import torch

from parallax_backend_torch.network import RunResult
from parallax_backend_torch.soundness import check_found
from parallax_backend_torch.step import Carried
from parallax_core.api import (
    BackendFailed,
    Draw,
    LayerRange,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StagePlan,
    Tensor,
)
from tests.support.checkpoints import LAYERS, save_family
from tests.support.torch_backend import TorchBackend

SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_stage_takes_numbers_only_and_goes_on(tmp_path: Path, value: float) -> None:
    save_family("qwen2", tmp_path)
    plan = StagePlan(model=tmp_path, layers=LayerRange(1, LAYERS), memory_fraction=1e-3)
    stage = TorchBackend().open_stage(plan)
    stage.edit([Open(SeqId(1), SPEC), Open(SeqId(2), SPEC)])
    [spec] = stage.info.takes
    rows = (Row(SeqId(1), 0, (5,), (Draw(0),)), Row(SeqId(2), 0, (6,), (Draw(0),)))
    good = [0.5] * (2 * spec.width)
    bad = [*good[:-1], value]
    with pytest.raises(BackendFailed, match="of sequence 2 are not finite") as caught:
        stage.step(StageBatch(rows, (write(bad, spec.width),)))
    assert caught.value.sequences == (2,)
    assert len(stage.step(StageBatch(rows, (write(good, spec.width),))).wait().answers) == 2
    stage.close()


def write(numbers: list[float], width: int) -> Tensor:
    return Tensor("float32", (len(numbers) // width, width), struct.pack(f"<{len(numbers)}f", *numbers))


ROWS = (Row(SeqId(4), 0, (1, 2), (Draw(1),)), Row(SeqId(9), 5, (3,), (Draw(0), Draw(0))))


@pytest.mark.parametrize("row", [[1.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_scores_that_are_no_numbers_are_not_drawn_from(row: list[float]) -> None:
    good = [1.0, -math.inf]
    check_found(RunResult(logits=torch.tensor([good, good, good])), ROWS)
    with pytest.raises(BackendFailed, match="the scores this stage computed of sequence 9 are") as caught:
        check_found(RunResult(logits=torch.tensor([good, good, row])), ROWS)
    assert caught.value.sequences == (9,)


def test_hidden_states_that_are_no_numbers_are_not_handed_on() -> None:
    check_found(RunResult(Carried(torch.zeros(3, 2))), ROWS)
    with pytest.raises(BackendFailed, match="the hidden states this stage computed of sequence 4 are") as caught:
        check_found(RunResult(Carried(torch.tensor([[0.0, 1.0], [math.nan, 0.0], [0.0, 1.0]]))), ROWS)
    assert caught.value.sequences == (4,)
