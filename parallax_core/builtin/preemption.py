"""Who gives way when pages run out: the policies core brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import Holder


@dataclass(frozen=True, slots=True)
class NewestFirst:
    """Who came last gives way first."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return the newest."""
        return max(holders, key=lambda holder: holder.arrived).id if holders else None


@dataclass(frozen=True, slots=True)
class LowestPriority:
    """Who is least urgent gives way first, and among equals who came last."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return the least urgent."""
        return max(holders, key=lambda holder: (holder.priority, holder.arrived)).id if holders else None


@dataclass(frozen=True, slots=True)
class Nobody:
    """Nobody gives way: a request that finds no page waits until another has finished."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return nobody."""
        del holders
        return None
