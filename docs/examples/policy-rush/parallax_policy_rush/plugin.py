"""Registers a policy with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import PolicySpec, Ref, hookimpl


@hookimpl
def parallax_register_policies() -> Iterable[PolicySpec]:
    """Offer the policy."""
    return [
        PolicySpec(
            name="rush",
            kind="batching",
            summary="a step waits for more requests while they keep coming",
            factory=Ref("parallax_policy_rush.policy:Rush"),
        )
    ]
