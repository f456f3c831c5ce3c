"""A model file that a model's adapter brings for this backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlx_lm.models import llama as model_file

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import (
    Draw,
    Drawn,
    LayerRange,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StagePlan,
    Unsupported,
)

PROMPT = (5, 9, 2, 40, 17, 33)


def draw_next(stage: MlxStage) -> tuple[int, ...]:
    """Return what a whole model draws after the prompt."""
    stage.edit([Open(SeqId(1), SequenceSpec(prompt_length=len(PROMPT), sampling=Sampling(temperature=0)))])
    (answer,) = stage.step(StageBatch((Row(SeqId(1), 0, PROMPT, (Draw(5),)),))).wait().answers
    stage.close()
    assert isinstance(answer, Drawn)
    return answer.tokens


def rename(folder: Path) -> None:
    """Let config.json name an architecture that mlx-lm does not know."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "nosuch", "architectures": ["NoSuchForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_model_file_that_was_brought_builds_a_model_mlx_lm_does_not_know(llama: Path, tmp_path: Path) -> None:
    expected = draw_next(MlxBackend().open_ordinary(StagePlan(model=llama)))
    folder = shutil.copytree(llama, tmp_path / "model")
    rename(folder)
    with pytest.raises(Unsupported, match="'nosuch'"):
        MlxBackend().open_ordinary(StagePlan(model=folder))
    assert draw_next(MlxBackend().open_ordinary(StagePlan(model=folder, blocks=model_file))) == expected
    part = MlxBackend().open_ordinary(StagePlan(model=folder, layers=LayerRange(0, 1), blocks=model_file))
    assert part.info.layers == LayerRange(0, 1)
    part.close()
