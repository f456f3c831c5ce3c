"""The built-in preemption policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import Holder


@dataclass(frozen=True, slots=True)
class LowestPriority:
    """Preempt the least urgent request first, and among equals the newest."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return the least urgent request."""
        return max(holders, key=lambda holder: (holder.priority, holder.arrived)).id if holders else None
