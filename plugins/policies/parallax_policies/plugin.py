"""Offers policies of batching, scheduling, preemption and routing, beside the default of each."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import PolicySpec, hookimpl
from parallax_policies.offers import POLICIES


@hookimpl
def parallax_register_policies() -> Iterable[PolicySpec]:
    """Offer the policies."""
    return POLICIES
