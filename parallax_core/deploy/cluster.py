"""A deployment whose stages a coordinator plans over the machines that have joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.base.ids import HEAD
from parallax_core.cluster.layer_plan import LayerPlanner
from parallax_core.cluster.placement.demand import measure_demand
from parallax_core.config.home import plan_file
from parallax_core.config.run import RunSettings
from parallax_core.contracts.device import DType
from parallax_core.contracts.placement import ModelDemand, PlacementPolicy, ServingGoal
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.status import PlannedReplica, PlanStatus
from parallax_core.contracts.transport import TransportSpec
from parallax_core.deploy.deployment import Deployment, DeploymentPlan, ReplicaEngine, TellLoss, read_plan
from parallax_core.deploy.executors import RemoteStages, WorkerLauncher
from parallax_core.deploy.join_codes import find_method, make_code_of
from parallax_core.deploy.succession import followed
from parallax_core.models.catalog import Catalog
from parallax_core.models.weight_size import ITEM_BYTES, measure_weight, read_model
from parallax_core.node.coordinator.coordinator import Coordinator
from parallax_core.node.coordinator.former_plan import FormerNodes, make_lasting
from parallax_core.node.coordinator.own_node import OWN_NODE, running_worker
from parallax_core.node.coordinator.pipelines import PlannedPipeline
from parallax_core.node.coordinator.plan_store import PlanStore
from parallax_core.node.coordinator.planned import Planning
from parallax_core.node.coordinator.profiles import NodeProfiles
from parallax_core.node.membership.code_store import ListeningHead
from parallax_core.node.membership.standbys import Standbys
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.policy.parse import make_policy
from parallax_core.node.routing.router import Router
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

HOUR_S = 3600.0


class JoinedCluster:
    """The pipelines of one model over the machines that join, and the worker of this machine."""

    def __init__(self, deployment: Deployment, plan: ClusterPlan, planner: LayerPlanner, tell: TellLoss) -> None:
        """Serve ``deployment`` with the pipelines that ``planner`` chooses."""
        assert isinstance(deployment.stages, RemoteStages), "it listens for nodes"
        self._deployment, self._stages, self._plan, self._tell = deployment, deployment.stages, plan, tell
        profiles = NodeProfiles(OWN_NODE, plan.full_name)
        lasting = make_lasting(planner, PlanStore(plan_file()), plan.full_name, profiles)
        self._find_memories = lasting.find_memories
        describe = FormerNodes(profiles, lasting.former, OWN_NODE if plan.settings.local else "").describe
        self._options = replace(deployment.pipeline, releases_requests=lambda: len(self.engines) > 1)
        self.coordinator = Coordinator(self._stages.registry, lasting, describe, self._open)
        self._standbys: Standbys | None = None
        self.join_command = ""
        """The command by which a machine joins, with its code; empty before machines can join, or if none can."""

    @property
    def engines(self) -> list[ReplicaEngine]:
        """The engines of the pipelines, by rank."""
        return list(self.coordinator.engines)

    def find_plan(self) -> PlanStatus:
        """Return what is planned."""
        plan, coordinator = self.coordinator.plan, self.coordinator
        pairs = zip(plan.pipelines.items(), plan.estimate.pipelines, strict=True)
        return PlanStatus(
            replicas=tuple(PlannedReplica(rank=rank, stages=stages, estimate=each) for (rank, stages), each in pairs),
            estimate=plan.estimate if plan.pipelines else None,
            idle=coordinator.idle,
            waits_for=coordinator.explain(),
            join_command=self.join_command if self._plan.shows_code else "",
            move=coordinator.move,
            slowdowns=coordinator.slowdowns,
            term=self._standbys.term.number if self._standbys is not None else 0,
            standbys=tuple(self._standbys.names) if self._standbys is not None else (),
        )

    @asynccontextmanager
    async def running(self, router: Router, listening: ListeningHead | None) -> AsyncIterator[None]:
        """Make a join code, start the worker of this machine, and have ``router`` follow the plan."""
        self.join_command = await asyncio.to_thread(self._plan.make_command, listening, self._stages)
        async with AsyncExitStack() as stack:
            if self._plan.settings.local:
                supervisor = WorkerSupervisor(self._plan.make_launcher(self._stages).make_command)
                await stack.enter_async_context(running_worker(supervisor))
            if listening is not None:
                settings, registry = self._plan.settings, self._stages.registry
                self._standbys = await stack.enter_async_context(
                    followed(self.coordinator, registry, settings, self._find_memories)
                )
            following = asyncio.create_task(self.coordinator.run(router))
            try:
                yield
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def _open(self, rank: int, planning: Planning) -> PlannedPipeline:
        executor = self._stages.make_planned(planning, self._options)
        lost = partial(self._tell, rank)
        return PlannedPipeline(PipelineEngine(executor, self._deployment.text.decode, self._options, lost), executor)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlan:
    """The settings of `parallax run`, checked as far as they can be before the model is on this machine."""

    settings: RunSettings
    plugins: PluginHost
    deployment: DeploymentPlan
    policy: PlacementPolicy
    shows_code: bool = True
    """Whether clients that may see the cluster are shown the join code."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port at which clients are served."""
        return self.deployment.address

    def prepare(self, private: Path, progress: Progress = silent) -> Deployment:
        """Fetch the model's description, and return its deployment; see `DeploymentPlan.prepare`."""
        return self.deployment.prepare(private, progress)

    def form(self, deployment: Deployment, tell: TellLoss) -> JoinedCluster:
        """Return the cluster that serves a deployment; ``tell`` is told of losses.

        Raises:
            ParallaxError: if no adapter knows the model.
        """
        settings = self.settings
        goal = ServingGoal(
            prompt_tokens=settings.prompt_tokens,
            output_tokens=settings.output_tokens,
            concurrency=settings.concurrency,
            objective=settings.objective,
            memory_fraction=settings.memory_fraction,
        )
        demand = measure_model(self.plugins, deployment.folder, settings.dtype)
        planner = LayerPlanner(policy=self.policy, model=demand, goal=goal, min_nodes=settings.nodes)
        return JoinedCluster(deployment, self, planner, tell)

    def make_command(self, listening: ListeningHead | None, stages: RemoteStages) -> str:
        """Return the command by which another machine joins."""
        if listening is None or not self.settings.code_hours:
            return stages.registry.invitation
        code, _ = make_code_of(listening, self.plugins, self.settings.code_hours * HOUR_S, 0)
        return f"parallax join {code}"

    def make_launcher(self, stages: RemoteStages) -> WorkerLauncher:
        """Return the maker of the command line of this machine's worker."""
        settings, offer = self.settings, self._transport
        if offer.spec.place_near is None:
            message = f"the transport {offer.spec.name!r} cannot choose an address for a node of this machine"
            raise UsageError(message, "start one by hand, and give --no-local")
        return WorkerLauncher(
            transport=offer.spec.name,
            registry=stages.registry,
            place=partial(offer.load(offer.spec.place_near), stages.registry.address),
            backends=(settings.backend or "",),
            peer_timeout=settings.peer_timeout or offer.spec.timeout_s,
            config_file=self.plugins.config_file,
            verbose=settings.verbose,
            memory=settings.memory,
            measure=True,
        )

    @property
    def full_name(self) -> str:
        """The name of the model with its source, as nodes call what they have on their disks."""
        return Catalog(self.plugins).qualify(self.settings.model)

    @property
    def _transport(self) -> Offer[TransportSpec]:
        return self.deployment.stages.transport


def read_cluster_plan(settings: RunSettings, plugins: PluginHost) -> ClusterPlan:
    """Return the plan that ``settings`` ask for; this machine gets a key if it has none.

    With ``--insecure``, anyone who reaches the server sees the cluster, and so not the join code.

    Raises:
        UsageError: if settings contradict each other.
        ParallaxError: if a backend, transport or policy is not installed, or a backend cannot run here.
    """
    deployment = read_plan(settings.as_serve(), plugins)
    policy = make_policy(plugins, "placement", settings.placement)
    if (method := find_method(deployment.stages.transport)) is not None:
        method.prepare(HEAD)
    return ClusterPlan(
        settings=settings,
        plugins=plugins,
        deployment=deployment,
        policy=policy,
        shows_code=not settings.insecure,
    )


def measure_model(plugins: PluginHost, folder: Path, dtype: DType) -> ModelDemand:
    """Return what the model in a folder takes in ``dtype``; ``auto``: as stored."""
    known = read_model(plugins, str(folder), silent)
    size = ITEM_BYTES.get(dtype) or measure_weight(known)
    return measure_demand(known.shape, size)
