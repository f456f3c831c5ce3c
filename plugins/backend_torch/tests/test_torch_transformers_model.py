"""Models without blocks of their own run on the code of transformers, with the logits of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.api import StagePlan, Unsupported
from tests.support.checkpoints import OTHERS, save_family, save_random
from tests.support.families import TOLERANCE, Configured, Family, Trial, run_chunks, run_forks, run_ragged
from tests.support.torch_backend import TorchBackend

LENGTH = 36
ALWAYS = {"generic": "always"}
OURS = ("llama", "qwen3", "gemma3_text", "gpt_oss", "mistral", "phi3", "gemma2", "granite", "mixtral", "qwen3_moe")
"""Families there are blocks for, which transformers can run as well."""


@pytest.mark.parametrize("kind", [*OTHERS, *OURS])
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    family = Family(kind, tmp_path, Configured(TorchBackend(), ALWAYS))
    for cuts in ((), (1, 3)):
        with family.open_chain(cuts, 1e-3) as chain:
            trial = Trial(family, chain)
            run_chunks(trial, LENGTH, 5)
            run_ragged(trial, LENGTH)
            run_forks(trial, LENGTH, (16, 33))
            assert trial.find_error() < TOLERANCE


@pytest.mark.parametrize("kind", ["qwen3_next", "deepseek_v3"])
def test_what_cannot_run_in_pages_is_refused(kind: str, tmp_path: Path) -> None:
    save_random(kind, tmp_path)
    with pytest.raises(Unsupported):
        TorchBackend().open_stage(StagePlan(model=tmp_path, options=ALWAYS))


def test_generic_path_can_be_turned_off(tmp_path: Path) -> None:
    save_family("cohere", tmp_path)
    with pytest.raises(Unsupported, match="no blocks for CohereForCausalLM"):
        TorchBackend().open_stage(StagePlan(model=tmp_path, options={"generic": "off"}))
