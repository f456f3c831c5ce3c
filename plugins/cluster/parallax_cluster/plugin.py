"""The plugin of clusters: servers that machines join, whose layers are planned."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DeploymentSpec, DialectSpec, NodeServiceSpec, PolicySpec, SettingsSpec, hookimpl


@hookimpl
def parallax_register_deployments() -> Iterable[DeploymentSpec]:
    """Offer servers whose machines join by codes, are found, or get their layers from a planner."""
    from parallax_cluster.offers import DEPLOYMENTS

    return DEPLOYMENTS


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the routes of a cluster."""
    from parallax_cluster.offers import DIALECTS

    return DIALECTS


@hookimpl
def parallax_register_node_services() -> Iterable[NodeServiceSpec]:
    """Offer what nodes of a cluster do beside running stages."""
    from parallax_cluster.offers import NODE_SERVICES

    return NODE_SERVICES


@hookimpl
def parallax_register_policies() -> Iterable[PolicySpec]:
    """Offer policies that place layers on nodes."""
    from parallax_cluster.offers import POLICIES

    return POLICIES


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the configuration sections of the cluster's commands."""
    from parallax_cluster.offers import SETTINGS

    return SETTINGS
