"""A deployment whose pipelines are assembled from nodes that announce their layers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from parallax_cluster.config.home import cluster_file
from parallax_cluster.cover_plan import CoverPlanner
from parallax_cluster.deploy.code_admission import CodeAdmission
from parallax_cluster.deploy.joined_model import JoinedModel
from parallax_cluster.deploy.node_finder import NodeFinder, admit_members, check_head
from parallax_cluster.deploy.rendezvous import RendezvousCodes, read_codes
from parallax_cluster.deploy.weight_size import measure_model
from parallax_cluster.node.coordinator.fixed_profiles import FixedProfiles
from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.node.coordinator.rooms import MachineRooms
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.api import HEAD, ListeningHead, Progress, ServerRequest, UsageError, silent
from parallax_core.api.deployment import Catalog, PlanStatus, PluginHost, ServeSettings, choose_listen
from parallax_core.api.node import WatchedWork, wait_for_ever
from parallax_core.deploy.additions import Additions
from parallax_core.deploy.deployment import Deployment, ReplicaEngine
from parallax_core.deploy.executors import RemoteStages
from parallax_core.deploy.fixed import FixedPlan, read_plan
from parallax_core.deploy.kinds import ServeRequest
from parallax_core.deploy.services import ServiceMaker
from parallax_core.deploy.stage_opener import name_offered


class FoundNodes:
    """The nodes that were found, and the model that they run."""

    join_command = ""
    """Empty: nodes that announce themselves are called."""
    await_end = staticmethod(wait_for_ever)
    """Returns never: nothing but its engines ends the server."""

    def __init__(self, deployment: Deployment, plan: FoundPlan, maker: ServiceMaker) -> None:
        """Serve ``deployment`` with a service of ``maker``.

        Raises:
            ParallaxError: if no adapter knows the model.
        """
        assert isinstance(deployment.stages, RemoteStages), "it listens for nodes"
        settings = plan.deployment.settings
        self._plan = plan
        self._model = name_offered(Catalog(plan.plugins), settings.model)
        demand = measure_model(plan.plugins, deployment.folder, settings.dtype, settings.backend)
        self._planner = CoverPlanner(model=demand)
        self._pool = NodePool(deployment.stages.registry)
        describe = FixedProfiles(self._model).describe
        self.first = JoinedModel(deployment, self._planner, describe, MachineRooms(self._pool), maker)
        self.first.waits = True

    @property
    def engines(self) -> list[ReplicaEngine]:
        """The engines of the pipelines."""
        return self.first.engines

    def find_plan(self, model: str) -> PlanStatus:
        """Return what is planned for the model."""
        del model
        return self.first.find_plan("")

    @asynccontextmanager
    async def running(self, listening: ListeningHead | None) -> AsyncIterator[None]:
        """Call nodes, and give the model those that join.

        Raises:
            ParallaxError: if nodes of other machines cannot reach this one.
        """
        head = check_head(listening.head if listening is not None else b"")
        finder = NodeFinder(self._plan.codes, self._model, len(self._planner.model.layers), head)
        following = WatchedWork(self._pool.follow(), self.first.fail)
        try:
            async with finder.calling():
                yield
        finally:
            await following.cancel()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPlan:
    """The settings of `parallax serve --find`, checked as far as they can be before the model is on this machine."""

    plugins: PluginHost
    deployment: FixedPlan
    codes: RendezvousCodes

    place = "on nodes that announce its layers"
    """Where its stages are computed."""

    @property
    def model(self) -> str:
        """The model as the user names it."""
        return self.deployment.model

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port at which clients are served."""
        return self.deployment.address

    def prepare(self, private: Path, progress: Progress = silent) -> Deployment:
        """Fetch the model's description, and return its deployment; see `FixedPlan.prepare`."""
        return self.deployment.prepare(private, progress)

    def form(self, deployment: Deployment, maker: ServiceMaker) -> FoundNodes:
        """Return the nodes that serve ``deployment``; ``maker`` makes its service.

        Raises:
            ParallaxError: if no adapter knows the model.
        """
        return FoundNodes(deployment, self, maker)


def plan(request: ServerRequest) -> FoundPlan:
    """Return the plan of a server that finds its nodes; see `read_found_plan`."""
    assert isinstance(request, ServeRequest), "core made it"
    return read_found_plan(request.settings, request.plugins)


def read_found_plan(settings: ServeSettings, plugins: PluginHost) -> FoundPlan:
    """Return the plan of a server that finds its nodes, creating this machine's key if needed.

    Raises:
        UsageError: if settings contradict each other.
        ParallaxError: if something is not installed or cannot run here, or no rendezvous can be reached.
    """
    for name in ("stages", "layers", "data_parallel", "spares", "device", "python"):
        if getattr(settings, name) != getattr(ServeSettings(), name):
            message = f"--{name.replace('_', '-')} and --find contradict each other"
            raise UsageError(message, "nodes that announce layers say themselves which they run: leave it out")
    codes = read_codes(plugins, settings.find, looks_around=settings.discovery)
    if settings.transport not in {None, codes.transport}:
        message = f"the join code is of the transport {codes.transport!r}, and --transport says {settings.transport!r}"
        raise UsageError(message, "leave --transport out")
    codes.method.prepare(HEAD)
    listen = choose_listen(plugins.transports().get(codes.transport), settings.listen, codes.find_near(), HEAD)
    given = replace(settings, transport=codes.transport, listen=listen)
    additions = Additions(admission=CodeAdmission(admit_members(codes, CodeStore(cluster_file()))))
    return FoundPlan(plugins=plugins, deployment=read_plan(given, plugins, additions), codes=codes)
