"""Stages that the user chose, which stay the same while the server runs: its plan, and its replicas."""

from __future__ import annotations

import math
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.base.files import read_object
from parallax_core.base.taskgroup import wait_for_ever
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.deployment import WantedNodes
from parallax_core.contracts.joining import ListeningHead
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.source import ModelFolder
from parallax_core.deploy.additions import NOTHING, Additions
from parallax_core.deploy.deployment import Deployment, Listening, ReplicaEngine
from parallax_core.deploy.services import ServiceMaker
from parallax_core.deploy.stage_options import StageOptions, collect_advice, read_stage_options
from parallax_core.engine.limits import Limits
from parallax_core.models.catalog import Catalog
from parallax_core.models.generation_config import check_choice
from parallax_core.models.layer_fetch import LayerFetcher
from parallax_core.models.output_parser import check_parser, find_parser
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.policy.parse import make_policy
from parallax_core.plugins.host import PluginHost
from parallax_core.server.hosting import FixedModel

StartNodes = Callable[[], AbstractAsyncContextManager[None]]
"""Returns a context in which the nodes run that a launcher starts."""


class FixedReplicas:
    """The replicas of one model."""

    join_command = ""
    """Empty: no machine joins by a code made here."""
    await_end = staticmethod(wait_for_ever)
    """Returns never: nothing but its engines ends the server."""

    def __init__(self, deployment: Deployment, maker: ServiceMaker, launch: StartNodes = nullcontext) -> None:
        """Make the replicas of ``deployment``, and its service with ``maker``; ``launch`` starts its nodes."""
        self._launch = launch
        self.engines: list[ReplicaEngine] = deployment.make_engines(maker.tell_loss(deployment.model_id))
        service, _ = maker.make(deployment, lambda: self.engines)
        self.first = FixedModel(service)

    def find_plan(self, model: str) -> None:
        """Return None: nothing is planned."""

    @asynccontextmanager
    async def running(self, listening: ListeningHead | None) -> AsyncIterator[None]:
        """Run the nodes of a launcher within this context; the service has all replicas."""
        del listening
        async with self._launch():
            yield


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPlan:
    """Settings for stages that stay the same, checked as far as they can be before the model is on this machine."""

    settings: ServeSettings
    plugins: PluginHost
    stages: StageOptions
    pipeline: PipelineOptions
    routing: RoutingPolicy
    added: Additions = NOTHING

    @property
    def model(self) -> str:
        """The model as the user names it."""
        return self.settings.model

    @property
    def place(self) -> str:
        """Where its stages are computed; see `StageOptions.place`."""
        return self.added.place or self.stages.place

    @property
    def num_nodes(self) -> int:
        """The nodes that it needs, with spares."""
        parallel = self.stages.parallel
        return parallel.num_stages * parallel.data_parallel + self.settings.spares

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port at which clients are served."""
        return self.settings.host, self.settings.port

    def form(self, deployment: Deployment, maker: ServiceMaker) -> FixedReplicas:
        """Return the replicas of a deployment, whose service ``maker`` makes."""
        return FixedReplicas(deployment, maker, partial(self.launch, deployment))

    def for_model(self, model: str) -> FixedPlan:
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
        if self.stages.uses_workers:  # these fetch their layers themselves
            folder = catalog.fetch_without_weights(settings.model, progress)
        else:
            check = self.stages.check_room(StagePlan(model=Path(), dtype=settings.dtype))
            folder = LayerFetcher(self.plugins, catalog).fetch(settings.model, None, progress, check)
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
            listening=self._make_listening(),
            parser=find_parser(self.plugins, config, text.template_source, settings.parser),
            advice=collect_advice(offers),
        )

    def launch(self, deployment: Deployment) -> AbstractAsyncContextManager[None]:
        """Return a context in which the nodes of a deployment run that a launcher starts, if there is one."""
        launch, registry = self.added.launch, deployment.registry
        if launch is None or registry is None:
            return nullcontext()
        command = tuple(shlex.split(registry.invitation))
        return launch(WantedNodes(num_nodes=self.num_nodes, address=registry.address, command=command))

    def _make_listening(self) -> Listening | None:
        admission, settings = self.added.admission, self.settings
        if admission is None or settings.listen is None:
            return None
        return partial(admission.listening, offer=self.stages.transport, settings=settings)


def read_plan(settings: ServeSettings, plugins: PluginHost, added: Additions = NOTHING) -> FixedPlan:
    """Return the plan that ``settings`` ask for, with what a kind of deployment has added.

    Raises:
        UsageError: if settings contradict each other.
        ParallaxError: if a backend, transport or policy is not installed, or a backend cannot run here.
    """
    if added.launch is not None and settings.listen is None:
        message = "a launcher starts nodes for a server that listens for them"
        raise UsageError(message, "give the address at which nodes reach it: --listen")
    check_choice(settings.generation_config)
    check_parser(plugins, settings.parser)
    stages = read_stage_options(settings, plugins, added)
    pipeline = PipelineOptions(
        limits=read_limits(settings),
        batching=make_policy(plugins, "batching", settings.batching),
        scheduling=make_policy(plugins, "scheduling", settings.scheduling),
        preemption=make_policy(plugins, "preemption", settings.preemption),
        target_itl_s=read_target(settings),
        backlog=UnreadOutput(settings.max_unread * 2**20),
        step_timeout_s=settings.step_timeout or None,
        recovery_timeout_s=settings.recovery_timeout,
        load_timeout_s=settings.load_timeout,
    )
    routing = make_policy(plugins, "routing", settings.routing)
    return FixedPlan(settings=settings, plugins=plugins, stages=stages, pipeline=pipeline, routing=routing, added=added)


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
