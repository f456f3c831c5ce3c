"""The built-in plugin, which uses the same hooks as all others."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DeploymentSpec, PolicySpec, SettingsSpec, SourceSpec, TransportSpec, hookimpl


@hookimpl
def parallax_register_sources() -> Iterable[SourceSpec]:
    """Offer local folders."""
    from parallax_core.builtin.offers import SOURCES

    return SOURCES


@hookimpl
def parallax_register_policies() -> Iterable[PolicySpec]:
    """Offer policies for batching, scheduling, preemption and routing."""
    from parallax_core.builtin.offers import POLICIES

    return POLICIES


@hookimpl
def parallax_register_transports() -> Iterable[TransportSpec]:
    """Offer the transport between nodes of one process."""
    from parallax_core.builtin.offers import TRANSPORTS

    return TRANSPORTS


@hookimpl
def parallax_register_deployments() -> Iterable[DeploymentSpec]:
    """Offer stages that the user chose."""
    from parallax_core.builtin.offers import DEPLOYMENTS

    return DEPLOYMENTS


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the configuration sections of core."""
    from parallax_core.builtin.offers import SETTINGS

    return SETTINGS
