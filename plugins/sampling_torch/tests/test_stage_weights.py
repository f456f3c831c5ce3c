"""Which tensors of a model a stage reads."""

from __future__ import annotations

from pathlib import Path

import torch

from parallax_core.api import LayerRange, silent
from parallax_sampling_torch.stage_weights import StageWeights

MODEL = Path("model")


def test_tensor_that_another_end_needs_may_be_missing() -> None:
    missing = frozenset({"lm_head.weight"})
    first, whole = (StageWeights(MODEL, silent, LayerRange(0, stop), 4, missing) for stop in (2, 4))
    assert not first.includes("lm_head.weight")
    assert whole.includes("lm_head.weight")  # and so it is found missing


def test_layers_of_a_stage_are_its_own() -> None:
    middle = StageWeights(MODEL, silent, LayerRange(1, 3), 4)
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(4)]
    assert [middle.includes(name) for name in names] == [False, True, True, False]
    assert not middle.includes("model.embed_tokens.weight")


def test_weights_count_in_the_dtype_of_the_computation() -> None:
    read = [torch.zeros(4, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int32)]
    weights = StageWeights(MODEL, silent, LayerRange(0, 1), 1, read=read)
    assert weights.count_bytes(torch.float32) == 4 * 4 + 3 * 4
