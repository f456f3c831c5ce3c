"""Registers a kind of deployment with Parallax, and the section with its options."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DeploymentSpec, Ref, SettingsSpec, hookimpl


@hookimpl
def parallax_register_deployments() -> Iterable[DeploymentSpec]:
    """Offer the kind."""
    return [
        DeploymentSpec(
            name="command",
            summary="each node is started by a command, such as ssh or srun",
            plan=Ref("parallax_deployment_command.launch:plan"),
        )
    ]


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the options."""
    return [
        SettingsSpec(
            name="command",
            summary="how the deployment 'command' starts nodes",
            schema=Ref("parallax_deployment_command.options:CommandOptions"),
        )
    ]
