"""Registers a policy with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import PolicySpec, Ref, hookimpl


@hookimpl
def parallax_register_policies() -> Iterable[PolicySpec]:
    """Offer the policy."""
    return [
        PolicySpec(
            name="cached-first",
            kind="scheduling",
            summary="the prompt of which the largest part is cached comes first",
            factory=Ref("parallax_policy_cached.policy:CachedFirst"),
        )
    ]
