"""Preemption policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.api import Holder, RequestId


@dataclass(frozen=True, slots=True)
class NewestFirst:
    """Preempt the newest request first."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return the newest request."""
        return max(holders, key=lambda holder: holder.arrived).id if holders else None


@dataclass(frozen=True, slots=True)
class NoPreemption:
    """Preempt no request: one without a free page waits until another has finished."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return None."""
        del holders
        return None
