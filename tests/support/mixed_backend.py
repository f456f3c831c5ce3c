"""A backend whose stages are of two others in turn."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.api import Backend, Stage, StagePlan


class MixedBackend:
    """Opens the stages of a chain, first to last, on backends in turn.

    Args:
        backends: of the first stage, the second and so on, and then from the first again.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends
        self._number = 0

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``; those from layer 0 on begin a chain."""
        self._number = self._number + 1 if plan.layers and plan.layers.start else 0
        return self._backends[self._number % len(self._backends)].open_stage(plan)
