"""Registers a policy with Parallax, and the settings of a command that shows what it does."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import PolicySpec, Ref, SettingsSpec, hookimpl


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


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section of the command."""
    return [
        SettingsSpec(
            name="rush",
            summary="the options of parallax rush",
            schema=Ref("parallax_policy_rush.command:RushSettings"),
        )
    ]
