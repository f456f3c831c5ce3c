"""The backend torch as core calls it: with what the model's adapter brings, whether or not plugins are installed."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch import backend
from parallax_core.api import ParallaxError, Stage, StagePlan, read_config
from parallax_models.plugin import parallax_register_models

SPECS = {name: spec for spec in parallax_register_models() for name in spec.architectures}


class TorchBackend(backend.TorchBackend):
    """Opens stages with the blocks of ``parallax-models``, and the shape of the model."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``."""
        return super().open_stage(bring_family(plan))


def bring_family(plan: StagePlan) -> StagePlan:
    """Return ``plan`` with the blocks and the shape that the family of its model has; those of a plan stay."""
    try:
        config = read_config(plan.model)
        spec = SPECS.get((config.get("architectures") or [""])[0])
        shape = spec.adapter.load().read_shape(config) if spec else None
    except ParallaxError:
        return plan
    blocks = spec.blocks["torch"].load() if spec and plan.blocks is None else plan.blocks
    return replace(plan, blocks=blocks, shape=plan.shape or shape)
