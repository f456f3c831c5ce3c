"""A deployment whose stages a coordinator plans over the machines that have joined."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from parallax_cluster.config.home import plan_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.code_admission import CodeAdmission
from parallax_cluster.deploy.join_codes import find_method, get_method, try_code_of
from parallax_cluster.deploy.joined_model import JoinedModel
from parallax_cluster.deploy.recorder import look_at, recording
from parallax_cluster.deploy.succession import ToldState, check_taken_over, followed, open_own_term
from parallax_cluster.deploy.variant_list import read_variants
from parallax_cluster.deploy.weight_size import measure_model
from parallax_cluster.labels import ANYWHERE, LabelRules, is_label, read_labels
from parallax_cluster.layer_plan import LayerPlanner, limit_to_variants
from parallax_cluster.model_variants import ModelVariants
from parallax_cluster.node.coordinator.coordinator import Describe
from parallax_cluster.node.coordinator.former_plan import FormerNodes, make_lasting
from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.node.coordinator.own_node import OWN_NODE, running_worker
from parallax_cluster.node.coordinator.placement_guard import make_placement
from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_cluster.node.coordinator.profiles import NodeProfiles
from parallax_cluster.node.coordinator.rooms import MachineRooms
from parallax_cluster.node.membership.own_term import NEWER_HINT, OwnTerm
from parallax_cluster.node.membership.standbys import Standbys
from parallax_cluster.rebalancing.rest import MoveRules
from parallax_cluster.server.model_changes import ModelChanges
from parallax_core.api import (
    HEAD,
    ListeningHead,
    ParallaxError,
    PlacementPolicy,
    Progress,
    ServerRequest,
    ServingGoal,
    TransportSpec,
    UsageError,
    silent,
)
from parallax_core.api.deployment import Catalog, Offer, PlanStatus, PluginHost, ServerSettings
from parallax_core.api.node import WatchedWork
from parallax_core.deploy.additions import Additions
from parallax_core.deploy.deployment import Deployment, ReplicaEngine
from parallax_core.deploy.executors import RemoteStages, WorkerLauncher
from parallax_core.deploy.fixed import FixedPlan, read_plan
from parallax_core.deploy.kinds import ServeRequest
from parallax_core.deploy.services import ServiceMaker
from parallax_core.node.membership.supervisor import WorkerSupervisor

HOUR_S = 3600.0

logger = logging.getLogger(__name__)


class JoinedCluster:
    """The machines that join, the worker of this one, and the models that they run; a `ModelHost`."""

    def __init__(self, deployment: Deployment, plan: ClusterPlan, maker: ServiceMaker) -> None:
        """Serve ``deployment``, and whatever else is loaded later, with services of ``maker``.

        Raises:
            ParallaxError: if no adapter knows the model, or no source has one that clients may name.
        """
        assert isinstance(deployment.stages, RemoteStages), "it listens for nodes"
        self._stages, self._plan, self._maker = deployment.stages, plan, maker
        self._store = PlanStore(plan_file())
        self._pool = NodePool(self._stages.registry, self._store)
        self._rooms = MachineRooms(self._pool)
        self._models: dict[str, JoinedModel] = {}
        self._standbys: Standbys | None = None
        self._ended, self._reason = asyncio.Event(), ""
        self._other_models: tuple[str, ...] = ()
        """The models that are loaded besides the first, as the user names them."""
        self.join_command = ""
        """The command by which a machine joins, with its code; empty before machines can join, or if none can."""
        self.first = self._make_first(deployment)
        self.first.waits = True
        changes = ModelChanges(maker.models, self, on_demand=plan.settings.load_on_demand)
        changes.know(plan.settings.known)
        maker.models.changes = changes

    @property
    def engines(self) -> list[ReplicaEngine]:
        """The engines of the first model."""
        return self.first.engines

    def name(self, model: str) -> str:
        """Return what clients call a model; see `ModelHost.name`.

        Raises:
            ParallaxError: if no source has models of that form.
        """
        catalog, path = Catalog(self._plan.plugins), Path(model).expanduser()
        catalog.locate(model)
        if path.is_dir():
            return path.resolve().name
        place = catalog.find_place(model)  # it may be loaded by another of its names, such as an alias
        loaded = {self._models[name].deployment.folder: name for name in self._pool.models}
        return loaded.get(place, model) if place is not None else model

    async def open(self, model: str) -> JoinedModel:
        """Return a model, not started; see `ModelHost.open`.

        Raises:
            ParallaxError: if it cannot be found, fetched or read.
        """
        plan, registry = self._plan.deployment.for_model(model), self._stages.registry
        deployment = await asyncio.to_thread(plan.prepare, Path(), silent, registry)
        planner = await asyncio.to_thread(self._plan.make_planner, deployment, 0)
        return self._make(deployment, planner, NodeProfiles(OWN_NODE, self._qualify(model)).describe)

    def remember(self, models: Sequence[str]) -> None:
        """Keep which models are loaded; see `ModelHost.remember`."""
        first = self._plan.settings.model
        self._other_models = tuple(model for model in models if model != first)
        try:
            self._store.save_loaded(self._qualify(first), self._other_models)
        except ParallaxError as error:
            logger.warning("%s; after a restart of the server, only its first model is loaded", error.message)

    def recall(self) -> Sequence[str]:
        """Return the models that were loaded before a restart; see `ModelHost.recall`."""
        try:
            return self._store.find_loaded(self._qualify(self._plan.settings.model))
        except ParallaxError as error:
            logger.warning("%s", error.message)
            return ()

    def find_plan(self, model: str) -> PlanStatus:
        """Return what is planned for a model; if it is not loaded, how machines join."""
        command, standbys = self.join_command if self._plan.shows_code else "", self._standbys
        loaded = model in self._pool.models
        found = self._models[model].find_plan(command) if loaded else PlanStatus(join_command=command)
        if standbys is None:
            return found
        return replace(found, term=standbys.own.state.term, standbys=tuple(standbys.names))

    @asynccontextmanager
    async def running(self, listening: ListeningHead | None) -> AsyncIterator[None]:
        """Make a join code, start the worker of this machine, and give models nodes as machines join."""
        self.join_command = await asyncio.to_thread(self._plan.make_command, listening, self._stages)
        async with AsyncExitStack() as stack:
            if self._plan.settings.local:
                supervisor = WorkerSupervisor(self._plan.make_launcher(self._stages).make_command)
                await stack.enter_async_context(running_worker(supervisor))
            if listening is not None:
                own = await asyncio.to_thread(self._plan.open_own_term, listening)
                others, drained = (lambda: self._other_models), self._pool.drained.names
                told = ToldState(self._plan.settings, self.first.coordinator, self._find_memories, others, drained)
                following = followed(self._stages.registry, own, told, self._give_way)
                self._standbys = await stack.enter_async_context(following)
            updating = WatchedWork(self._pool.follow(), self._fail)
            await stack.enter_async_context(recording(lambda: look_at(self._pool, self._models)))
            try:
                yield
            finally:
                await updating.cancel()

    def _fail(self, error: BaseException) -> None:
        for model in self._models.values():
            model.fail(error)

    async def await_end(self) -> None:
        """Wait until the server has to end for good.

        Raises:
            ParallaxError: once another coordinator has taken over.
        """
        await self._ended.wait()
        raise ParallaxError(self._reason, NEWER_HINT)

    def _give_way(self, reason: str) -> None:
        """Serve no more: another coordinator has taken over."""
        if self._ended.is_set():  # several nodes say so
            return
        logger.critical("%s", reason)
        self._reason = reason
        self._ended.set()
        for model in self._models.values():
            model.coordinator.end(reason)

    def _make_first(self, deployment: Deployment) -> JoinedModel:
        """Return the server's first model, which resumes its last plan."""
        plan, name = self._plan, self._qualify(self._plan.settings.model)
        planner, profiles = plan.make_planner(deployment, plan.settings.nodes), NodeProfiles(OWN_NODE, name)
        planner = limit_to_variants(planner, plan.variants) if plan.variants else planner
        lasting = make_lasting(planner, self._store, name, profiles)
        self._find_memories = lasting.find_memories
        describe = FormerNodes(profiles, lasting.former, OWN_NODE if plan.settings.local else "").describe
        return self._make(deployment, lasting, describe)

    def _qualify(self, model: str) -> str:
        """Return the name of a model with its source, as nodes call what they have on their disks."""
        return Catalog(self._plan.plugins).qualify(model)

    def _make(self, deployment: Deployment, planner: LayerPlanner, describe: Describe) -> JoinedModel:
        made = JoinedModel(deployment, planner, describe, self._rooms, self._maker)
        self._models[deployment.model_id] = made
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlan:
    """The settings of `parallax run`, checked as far as they can be before the model is on this machine."""

    settings: RunSettings
    plugins: PluginHost
    deployment: FixedPlan
    policy: PlacementPolicy
    labels: LabelRules = ANYWHERE
    """Which machines may have layers."""
    shows_code: bool = True
    """Whether clients that may see the cluster are shown the join code."""
    variants: ModelVariants | None = None
    """Of the model to begin with; None: all machines load the same files."""

    @property
    def place(self) -> str:
        """Where its stages are computed, and with which other files."""
        return "on all machines that join" + (f", with {self.variants}" if self.variants else "")

    @property
    def model(self) -> str:
        """The model to begin with, as the user names it."""
        return self.settings.model

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port at which clients are served."""
        return self.deployment.address

    def prepare(self, private: Path, progress: Progress = silent) -> Deployment:
        """Fetch the model's description, and return its deployment; see `FixedPlan.prepare`."""
        return self.deployment.prepare(private, progress)

    def form(self, deployment: Deployment, maker: ServiceMaker) -> JoinedCluster:
        """Return the cluster that serves a deployment, whose services ``maker`` makes.

        Raises:
            ParallaxError: if no adapter knows the model.
        """
        return JoinedCluster(deployment, self, maker)

    def make_planner(self, deployment: Deployment, min_nodes: int) -> LayerPlanner:
        """Return the planner of a deployment, which first waits for ``min_nodes``.

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
        demand = measure_model(self.plugins, deployment.folder, settings.dtype, settings.backend)
        rules = MoveRules(holds=settings.hold_moves)
        return LayerPlanner(
            policy=self.policy, model=demand, goal=goal, min_nodes=min_nodes, rules=rules, labels=self.labels
        )

    def open_own_term(self, listening: ListeningHead) -> OwnTerm:
        """Return the term of the coordinator that listens; see `open_own_term`."""
        return open_own_term(self.settings, get_method(self.plugins, listening.transport).find_key(listening.head))

    def make_command(self, listening: ListeningHead | None, stages: RemoteStages) -> str:
        """Return the command by which another machine joins."""
        hours = self.settings.code_hours
        code = try_code_of(listening, self.plugins, hours * HOUR_S) if listening is not None and hours else ""
        return f"parallax join {code}" if code else stages.registry.invitation

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
            labels=settings.label,
            max_context=settings.max_context,
            as_joined=True,
        )

    @property
    def _transport(self) -> Offer[TransportSpec]:
        return self.deployment.stages.transport


def plan(request: ServerRequest) -> ClusterPlan:
    """Return the plan of a server whose layers are planned, for the settings of ``[serve]`` and ``[run]``."""
    assert isinstance(request, ServeRequest), "core made it"
    settings, run = request.settings, request.plugins.read_section(RunSettings)
    shared = {field.name: getattr(settings, field.name) for field in fields(ServerSettings)}
    given = {name: value for name in ("listen", "backend", "transport") if (value := getattr(settings, name))}
    return read_cluster_plan(replace(run, **shared, **given), request.plugins)


def read_cluster_plan(settings: RunSettings, plugins: PluginHost) -> ClusterPlan:
    """Return the plan that ``settings`` ask for, creating this machine's key if needed.

    With ``--insecure``, anyone who reaches the server sees the cluster, and so not the join code.

    Raises:
        UsageError: if settings contradict each other.
        ParallaxError: if a backend, transport or policy is not installed, or a backend cannot run here; or if another
            coordinator has taken over.
    """
    check_taken_over(settings)
    deployment = read_plan(settings.as_serve(), plugins, Additions(admission=CodeAdmission()))
    policy = make_placement(plugins, settings.placement)
    if (method := find_method(deployment.stages.transport)) is not None:
        method.prepare(HEAD)
    return ClusterPlan(
        settings=settings,
        plugins=plugins,
        deployment=deployment,
        policy=policy,
        labels=read_rules(settings),
        shows_code=not settings.insecure,
        variants=read_variants(settings, Catalog(plugins)),
    )


def read_rules(settings: RunSettings) -> LabelRules:
    """Return the rules about labels that ``settings`` have; raises UsageError if one has a wrong form."""
    read_labels(settings.label, "label")
    if settings.spread_by and not is_label(settings.spread_by, "x"):
        raise UsageError(f"spread_by {settings.spread_by!r} is not the key of a label", "such as room")
    return LabelRules(selector=read_labels(settings.node_selector, "node_selector"), spread_by=settings.spread_by)
