"""The plugin of clusters: servers that machines join, whose layers are planned."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DeploymentSpec, Ref, hookimpl


@hookimpl
def parallax_register_deployments() -> Iterable[DeploymentSpec]:
    """Offer servers whose machines join by codes, are found, or get their layers from a planner."""
    return [
        DeploymentSpec(
            name="joined",
            summary="stages that the user chose, on machines that join by codes; layers move by measured speed",
            plan=Ref("parallax_core.deploy.code_admission:plan"),
            selects=Ref("parallax_core.deploy.code_admission:selects"),
        ),
        DeploymentSpec(
            name="found",
            summary="layers that nodes announce, as with --find and --announce",
            plan=Ref("parallax_core.deploy.found:plan"),
            work=Ref("parallax_core.deploy.announced:work"),
        ),
        DeploymentSpec(
            name="planned",
            summary="layers that a planner gives to the machines that join, as `parallax run` does",
            plan=Ref("parallax_core.deploy.cluster:plan"),
        ),
    ]
