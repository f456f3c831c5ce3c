"""Tiny random models of several families on the real SGLang, whole and in stages, have the scores of transformers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers

from parallax_backend_sglang.backend import SglangBackend
from parallax_core.api import Drawn, LayerRange, StagePlan, Unsupported
from parallax_core.testing.checks.chain import Chain

pytestmark = pytest.mark.timeout(900)

LAYERS = 4
MARGIN = 1e-3
TOKENS = (5, 9, 2, 60, 44, 3, 71, 71, 12, 90, 33, 8)
FAMILIES = (
    ("llama", True),
    ("llama", False),
    ("mistral", False),
    ("qwen2", False),
    ("qwen3", True),
    ("qwen3_moe", False),
)
"""Families, and whether the output head is the embedding."""


def open_chain(folder: Path, *cuts: int) -> Chain:
    """Return stages that begin at layer 0 and at ``cuts``."""
    return Chain([SglangBackend().open_stage(make_plan(folder, *bounds)) for bounds in pairwise((0, *cuts, LAYERS))])


def make_plan(folder: Path, *bounds: int) -> StagePlan:
    """Return the plan of a stage in float32."""
    return StagePlan(
        model=folder, layers=LayerRange(*bounds), dtype="float32", memory_fraction=0.001, options={"threads": 1}
    )


@pytest.mark.usefixtures("fork_stages")
@pytest.mark.parametrize("cuts", [(), (2,), (1, 3)])
@pytest.mark.parametrize(("kind", "is_tied"), FAMILIES)
def test_family_has_the_scores_of_transformers(
    find_model: Callable[..., Path], kind: str, is_tied: bool, cuts: tuple[int, ...]
) -> None:
    folder = find_model(kind, is_tied=is_tied)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        scores = reference(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    with open_chain(folder, *cuts) as chain:
        seq = chain.open()
        answers = [*chain.trace(seq, TOKENS[:7]), *chain.trace(seq, TOKENS[7:], size=1)]
    for answer, row in zip(answers, scores, strict=True):
        assert isinstance(answer, Drawn)
        for token, score in answer.top:
            assert score == pytest.approx(float(row[token]), abs=MARGIN)
        assert answer.top[0][1] == pytest.approx(float(row.max()), abs=MARGIN)


@pytest.mark.usefixtures("fork_stages")
@pytest.mark.parametrize(("kind", "name"), [("gemma", "GemmaForCausalLM"), ("gemma3_text", "Gemma3ForCausalLM")])
def test_family_that_cannot_be_a_stage_is_refused_by_name(
    find_model: Callable[..., Path], kind: str, name: str
) -> None:
    with pytest.raises(Unsupported, match=f"{name}: it has no support for pipelines") as caught:
        SglangBackend().open_stage(make_plan(find_model(kind), 0, 2))
    assert "--layers" in caught.value.hint
