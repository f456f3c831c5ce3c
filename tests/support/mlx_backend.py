"""The backend MLX as core calls it."""

from __future__ import annotations

from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import Stage, StagePlan
from parallax_core.testing.blocks import bring_blocks


class BroughtMlx(MlxBackend):
    """The backend MLX with the shape of the model, as core calls it."""

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``."""
        return super().open_stage(bring_blocks(plan, "mlx"))
