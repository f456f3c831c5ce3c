"""Chooses the kind of deployment of a server, and has it plan the server; see `DeploymentSpec`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from parallax_core.base.errors import BrokenPlugin, PluginConflict, UsageError
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.deployment import DeploymentSpec, Launch, ServerPlan, ServerRequest
from parallax_core.contracts.joining import ListeningHead
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.status import PlanStatus
from parallax_core.deploy.additions import Additions
from parallax_core.deploy.deployment import Deployment, ReplicaEngine
from parallax_core.deploy.deployment_kind import FIXED, FOUND, call
from parallax_core.deploy.fixed import FixedPlan, read_plan
from parallax_core.deploy.services import ServiceMaker
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.server.hosting import HostedModel

T = TypeVar("T")


class DeployedReplicas(Protocol):
    """What serves the models of a deployment."""

    @property
    def first(self) -> HostedModel:
        """The model with which the server starts."""

    @property
    def engines(self) -> list[ReplicaEngine]:
        """The engines of the first model."""

    @property
    def join_command(self) -> str:
        """The command by which another machine joins; empty: none does by a code."""

    @property
    def await_end(self) -> Callable[[], Coroutine[None, None, None]]:
        """Returns what raises the reason once the server has to end for good, whatever its engines do."""

    def find_plan(self, model: str) -> PlanStatus | None:
        """Return what is planned for a model, or for all if its name is empty; None: nothing is."""

    def running(self, listening: ListeningHead | None) -> AbstractAsyncContextManager[None]:
        """Return a context in which the replicas get their nodes."""


@runtime_checkable
class ServePlan(ServerPlan, Protocol):
    """What a server serves, and how its replicas are formed."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port at which clients are served."""

    def prepare(self, private: Path, progress: Progress) -> Deployment:
        """Fetch the model, or what describes it, and return its deployment; see `FixedPlan.prepare`."""

    def form(self, deployment: Deployment, maker: ServiceMaker) -> DeployedReplicas:
        """Return the replicas of a deployment, whose services ``maker`` makes."""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """A server that is about to start; a `ServerRequest`."""

    settings: ServeSettings
    plugins: PluginHost

    def read_section(self, schema: type[T]) -> T:
        """Return a section of the configuration; see `PluginHost.read_section`."""
        return self.plugins.read_section(schema)

    def plan(self, *, place: str = "", launch: Launch | None = None, **changed: object) -> FixedPlan:
        """Return the plan of a server for these settings; see `ServerRequest.plan`."""
        try:
            settings = replace(self.settings, **changed)  # type: ignore[arg-type]  # of the types of the fields
        except TypeError as error:
            raise UsageError(f"there is no such setting in [serve]: {error}", "`parallax config` lists them") from error
        return read_plan(settings, self.plugins, Additions(launch=launch, place=place))


def plan_fixed(request: ServerRequest) -> ServerPlan:
    """Return the plan of a server whose stages the user chose."""
    return request.plan()


def read_serve_plan(settings: ServeSettings, plugins: PluginHost) -> ServePlan:
    """Return the plan of the server that ``settings`` ask for.

    Raises:
        UsageError: if settings contradict each other.
        UnknownName: if no plugin offers the kind of deployment.
        PluginConflict: if several kinds are for these settings.
        ParallaxError: if something is not installed or cannot run here.
    """
    offer = _choose(settings, plugins)
    if offer.spec.plan is None:
        raise UsageError(f"the deployment {offer.spec.name!r} is for workers", "leave --set deployment out")
    request: ServerRequest = ServeRequest(settings, plugins)
    plan = call(offer, offer.spec.plan, request)
    if not isinstance(plan, ServePlan):
        message = f"the deployment {offer.spec.name!r} of {offer.plugin.origin} gave {plan!r} as the plan of a server"
        raise BrokenPlugin(message, "report it to its authors")
    return plan


def _choose(settings: ServeSettings, plugins: PluginHost) -> Offer[DeploymentSpec]:
    deployments = plugins.deployments()
    if settings.deployment or settings.find:
        if settings.find and settings.deployment not in {"", FOUND}:
            raise UsageError("--find and --set deployment contradict each other", "leave one of them out")
        return deployments.get(settings.deployment or FOUND)
    asked = [(offer, offer.spec.selects) for offer in deployments.offers]
    found = [offer for offer, selects in asked if selects is not None and call(offer, selects, settings)]
    if len(found) > 1:
        names = " and ".join(f"{each.spec.name!r} ({each.plugin.origin})" for each in found)
        message = f"several kinds of deployments are for these settings: {names}"
        raise PluginConflict(message, "name one: --set deployment=NAME")
    return found[0] if found else deployments.get(FIXED)
