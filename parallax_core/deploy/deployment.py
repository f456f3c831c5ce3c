"""A deployment: the stages, engines and router of one model, made from settings."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_core.base.files import read_object
from parallax_core.base.ids import is_lease
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.joining import ListeningHead
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.status import NodeStatus
from parallax_core.contracts.transport import TransportSpec
from parallax_core.deploy.discovery import being_found
from parallax_core.deploy.engines import EngineWorkers
from parallax_core.deploy.executors import LocalStages, RemoteStages
from parallax_core.deploy.join_codes import note_listening
from parallax_core.deploy.network import telling_addresses
from parallax_core.deploy.stage_options import StageOptions, collect_advice, read_stage_options
from parallax_core.engine.limits import Limits
from parallax_core.models.catalog import Catalog
from parallax_core.models.generation_config import check_choice
from parallax_core.models.output_parser import OutputParser, check_parser, find_parser
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.served_links import ServeLink
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.policy.parse import make_policy
from parallax_core.node.routing.router import Router
from parallax_core.node.status import describe_node, describe_spares
from parallax_core.node.whole_model.engine import TextEngine
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

if TYPE_CHECKING:
    from parallax_core.deploy.fixed import FixedReplicas
    from parallax_core.deploy.services import ServiceMaker

logger = logging.getLogger(__name__)


TellLoss = Callable[[int, str], None]
"""Told the rank of a replica and the reason when it is lost."""
ReplicaEngine = PipelineEngine | TextEngine
"""A replica: stages, or an engine that schedules itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """The parts that serve one model; its stages are opened when its engines start."""

    model_id: str
    folder: Path
    text: ModelTokenizer
    stages: LocalStages | RemoteStages | EngineWorkers
    pipeline: PipelineOptions
    topology: ParallelConfig
    routing: RoutingPolicy
    noted_transport: Offer[TransportSpec] | None = None
    """The transport by which other machines may join, so that codes can be made; None: none may."""
    listen: tuple[str, ...] = ()
    """The address at which a user wants it to listen; empty: at one of its own choice."""
    is_found: bool = True
    """Whether machines that may join find it without its address."""
    stun_port: int = 0
    """Where it tells machines their address; 0: nowhere."""
    parser: OutputParser | None = None
    """The parser of the model's outputs; None: its text is not parsed."""
    advice: tuple[str, ...] = ()
    """Hints for the user that would make it faster."""

    def make_engines(self, on_lost: TellLoss | None = None) -> list[ReplicaEngine]:
        """Return an engine for each replica; ``on_lost`` is told its rank and the reason when one is lost."""
        engines: list[ReplicaEngine] = []
        options = replace(self.pipeline, releases_requests=lambda: len(self.topology.replicas) > 1)
        for rank, places in enumerate(self.topology.replicas):
            lost = partial(on_lost, rank) if on_lost else None
            if isinstance(self.stages, EngineWorkers):
                engines.append(self.stages.make_engine(rank, places[0], options, self.text.decode, lost))
            else:
                executor = self.stages.make_executor(rank, places, options)
                engines.append(PipelineEngine(executor, self.text.decode, options, lost))
        return engines

    def list_waiting(self) -> list[NodeStatus]:
        """Return the nodes that have joined and have no stage: the spares, and those with nothing to do; no leases."""
        registry, spares = self._registry, self._spares
        joined = registry.waiting if registry is not None else ()
        waiting = [describe_node(each) for each in joined if not is_lease(each.name)]
        return [*describe_spares(spares.spares if spares else ()), *waiting]

    def list_nodes(self) -> list[NodeStatus]:
        """Return the nodes that have joined, with and without a stage; leases belong to the nodes that hold them."""
        joined = self._registry.joined if self._registry is not None else ()
        return [describe_node(each) for each in joined if not is_lease(each.name)]

    def share_api(self, serve: ServeLink) -> None:
        """Answer client requests that joined nodes forward with ``serve``; no effect without a registry."""
        if self._registry is not None:
            self._registry.services["api"] = serve

    @asynccontextmanager
    async def nodes_joining(self) -> AsyncIterator[ListeningHead | None]:
        """Accept nodes within this context, if any may join; yields where machines join by a code, or None."""
        registry, listening = self._registry, None
        try:
            async with AsyncExitStack() as stack:
                if registry is not None:
                    await registry.start()
                    logger.info("head listens at %s", registry.address)
                    if self.noted_transport is not None:
                        places = (*self.listen, registry.address)
                        listening = note_listening(self.noted_transport, *places)
                        stack.enter_context(telling_addresses(places, self.stun_port))
                        if self.is_found:
                            await stack.enter_async_context(being_found(self.noted_transport, *places))
                yield listening
        finally:
            if self._spares is not None:
                await self._spares.stop()
            if registry is not None:
                await registry.stop()

    @property
    def _spares(self) -> SparePool | None:
        return self.stages.spares if isinstance(self.stages, RemoteStages) else None

    @property
    def _registry(self) -> NodeRegistry | None:
        match self.stages:
            case RemoteStages() as stages:
                return stages.registry
            case EngineWorkers(workers=stages):
                return stages.registry
            case _:
                return None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Router]:
        """Open the stages and yield the engine that serves the model; stop it at the end.

        Raises:
            ParallaxError: if a stage cannot be opened.
        """
        engines = self.make_engines()
        find_room = partial(find_max_length, engines)
        router = Router(engines, self.routing, find_room, self.pipeline.recovery_timeout_s)
        async with self.nodes_joining():
            await router.start()
            try:
                yield router
            finally:
                await router.stop()


def find_max_length(engines: Sequence[ReplicaEngine]) -> int:
    """Return the longest sequence that every replica can serve that was ready, in tokens; 0 before one was."""
    return min((length for engine in engines if (length := engine.max_length)), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentPlan:
    """Settings for a deployment, checked as far as they can be before the model is on this machine."""

    settings: ServeSettings
    plugins: PluginHost
    stages: StageOptions
    pipeline: PipelineOptions
    routing: RoutingPolicy

    known_models = ()
    """Models that clients may name besides: none, since the stages are of one."""
    loads_on_demand = False

    @property
    def model(self) -> str:
        """The model as the user names it."""
        return self.settings.model

    @property
    def place(self) -> str:
        """Where its stages are computed; see `StageOptions.place`."""
        return self.stages.place

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port at which clients are served."""
        return self.settings.host, self.settings.port

    def form(self, deployment: Deployment, maker: ServiceMaker) -> FixedReplicas:
        """Return the replicas of a deployment, whose service ``maker`` makes."""
        from parallax_core.deploy.fixed import FixedReplicas

        return FixedReplicas(deployment, maker)

    def for_model(self, model: str) -> DeploymentPlan:
        """Return the same plan for another model, whose outputs are parsed as is usual for it."""
        settings = replace(self.settings, model=model, parser=ServeSettings().parser)
        return replace(self, settings=settings, stages=replace(self.stages, settings=settings))

    def prepare(self, private: Path, progress: Progress = silent, registry: NodeRegistry | None = None) -> Deployment:
        """Fetch the model if it is not here, and return its deployment.

        Args:
            private: an empty folder of this process, for sockets.
            progress: hears of the download and of loading.
            registry: of the nodes, if there is one already.

        Raises:
            ParallaxError: if the model cannot be found, fetched or split as asked.
        """
        settings, catalog = self.settings, Catalog(self.plugins)
        # Stages in processes of their own fetch their layers themselves.
        fetch = catalog.fetch_without_weights if self.stages.uses_workers else catalog.fetch
        folder = fetch(settings.model, progress)
        config = read_object(folder.path / "config.json")
        offers, plan = self.stages.choose_offers(config), plan_stages(settings, folder, progress)
        text = ModelTokenizer(folder.path, settings.generation_config)
        return Deployment(
            model_id=name_model(settings.model, folder),
            folder=folder.path,
            text=text,
            stages=self.stages.make_stages(plan, offers, private, name_for_workers(catalog, settings.model), registry),
            pipeline=replace(self.pipeline, grammars=text.grammars),
            topology=self.stages.place_layers(config),
            routing=self.routing,
            noted_transport=self.stages.transport if settings.listen is not None else None,
            listen=(settings.listen,) if settings.listen is not None else (),
            is_found=settings.discovery,
            stun_port=settings.stun_port,
            parser=find_parser(self.plugins, config, text.template_source, settings.parser),
            advice=collect_advice(offers),
        )


def read_plan(settings: ServeSettings, plugins: PluginHost) -> DeploymentPlan:
    """Return the plan that ``settings`` ask for.

    Raises:
        UsageError: if settings contradict each other.
        ParallaxError: if a backend, transport or policy is not installed, or a backend cannot run here.
    """
    check_choice(settings.generation_config)
    check_parser(plugins, settings.parser)
    stages = read_stage_options(settings, plugins)
    pipeline = PipelineOptions(
        limits=read_limits(settings),
        batching=make_policy(plugins, "batching", settings.batching),
        preemption=make_policy(plugins, "preemption", settings.preemption),
        target_itl_s=read_target(settings),
        backlog=UnreadOutput(settings.max_unread * 2**20),
        step_timeout_s=settings.step_timeout or None,
        recovery_timeout_s=settings.recovery_timeout,
        load_timeout_s=settings.load_timeout,
    )
    routing = make_policy(plugins, "routing", settings.routing)
    return DeploymentPlan(settings=settings, plugins=plugins, stages=stages, pipeline=pipeline, routing=routing)


def read_limits(settings: ServeSettings) -> Limits:
    """Return how much a user wants a replica to take on."""
    return Limits(
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        max_batch_tokens=settings.max_batch_tokens,
    )


def read_target(settings: ServeSettings) -> float | None:
    """Return the wanted time between two tokens in seconds; infinity: any."""
    if settings.target_itl is None:
        return None
    return settings.target_itl / 1000 or math.inf


def plan_stages(settings: ServeSettings, model: ModelFolder, progress: Progress) -> StagePlan:
    """Return what holds for every stage of a model."""
    return StagePlan(
        model=model.path,
        listed_weights=model.listed_weights,
        dtype=settings.dtype,
        memory_fraction=settings.memory_fraction,
        max_batch_tokens=settings.max_batch_tokens or 0,
        max_running=settings.max_running or 0,
        progress=progress,
    )


def name_model(model: str, folder: ModelFolder) -> str:
    """Return what clients call the model: a folder's name, and anything else as it was written."""
    return folder.path.resolve().name if Path(model).expanduser().is_dir() else model


def name_for_workers(catalog: Catalog, model: str) -> str:
    """Return what worker processes of this machine find the model by, whatever plugins their environments have.

    That is its folder, once it is complete.
    """
    found = catalog.find(model)
    return str(found.path.resolve()) if found else catalog.qualify(model)
