"""The backend torch as core calls it: with the blocks of the model's adapter, whether or not plugins are installed."""

from __future__ import annotations

from dataclasses import replace

from parallax_backend_torch import backend
from parallax_core.api import ParallaxError, Stage, StagePlan, read_config
from parallax_models.plugin import parallax_register_models

BLOCKS = {name: spec.blocks["torch"] for spec in parallax_register_models() for name in spec.architectures}


class TorchBackend(backend.TorchBackend):
    """Opens stages with the blocks of ``parallax-models``."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``."""
        try:
            named = read_config(plan.model).get("architectures") or [""]
        except ParallaxError:
            named = [""]
        blocks = BLOCKS[named[0]].load() if plan.blocks is None and named[0] in BLOCKS else plan.blocks
        return super().open_stage(replace(plan, blocks=blocks))
