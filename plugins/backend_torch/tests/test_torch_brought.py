"""Blocks that a model's adapter brings for this backend, at the example of the documentation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from parallax_backend_torch.backend import TorchBackend
from parallax_core.api import Stage, StagePlan
from parallax_model_olmo2.plugin import parallax_register_models
from tests.support.families import TOLERANCE, Family, Trial, run_chunks, run_forks, run_ragged

LENGTH = 36
[SPEC] = parallax_register_models()


@dataclass(frozen=True)
class Bringing:
    """The backend as core calls it when the adapter of the model brings blocks."""

    def open_stage(self, plan: StagePlan) -> Stage:
        return TorchBackend().open_stage(replace(plan, blocks=SPEC.blocks["torch"].load(), options={"generic": "off"}))


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    family = Family("olmo2", tmp_path, Bringing())
    for cuts in ((), (1, 3)):
        with family.open_chain(cuts, 1e-3) as chain:
            trial = Trial(family, chain)
            run_chunks(trial, LENGTH, 5)
            run_ragged(trial, LENGTH)
            run_forks(trial, LENGTH, (16, 33))
            assert trial.find_error() < TOLERANCE
