"""Policies: decisions that are made often, cost little, and can be replaced.

A policy is pure: what it is given is all it knows, and the same input gives the same answer. The engine holds the
reins, so that no policy can hang it: a step that could run is never held back for longer than a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parallax_core.base.ids import RequestId


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """What is waiting for the next step."""

    num_ready: int
    """Requests that could have a row in a step planned now."""
    oldest_wait_s: float
    """For how long the first of them could have had one, in seconds."""
    num_in_flight: int
    """Steps that are planned and not yet finished."""


class BatchingPolicy(Protocol):
    """When the next step begins."""

    def wait_s(self, queue: QueueView) -> float:
        """Return 0 to begin a step now, or the seconds after which to ask again; something may happen before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A running request, as one that might have to give its pages back."""

    id: RequestId
    priority: float
    """With ageing taken off; lower is more urgent."""
    arrived: float
    num_tokens: int
    """What would have to be computed again."""


class PreemptionPolicy(Protocol):
    """Who gives way when pages run out. Who does is computed again later; nothing is lost but time."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return one of ``holders``, all of lower rank than the one in need, or None to let that one wait."""
