"""``parallax serve``."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from parallax_core.base import log
from parallax_core.base.files import read_object
from parallax_core.cli.command import new_app
from parallax_core.cli.exposure import check_exposure, check_tls, make_options
from parallax_core.cli.option import from_section
from parallax_core.cli.progress import Display, make_display
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.event import StageLoss
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.status import NodeStatus, ReplicaLimits
from parallax_core.deploy.executors import LocalStages, RemoteStages
from parallax_core.deploy.stage_options import collect_advice, read_stage_options
from parallax_core.engine.limits import Limits
from parallax_core.models.catalog import Catalog
from parallax_core.models.generation_config import RequestDefaults, check_choice
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.events.delivery import EventBus
from parallax_core.node.events.requests import EventRouter, RequestEvents
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.policy.parse import make_policy
from parallax_core.node.routing.router import Router
from parallax_core.node.status import describe_node
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.output import claim_output
from parallax_core.server.options import ServerOptions

AUDIENCE_S, SHUTDOWN_S = 0.3, 0.5
"""How long plugins may take at the end: to see what has happened, and to put things in order."""

logger = logging.getLogger(__name__)

app = new_app()


@app.command()
@from_section("serve", ServeSettings)
def serve(settings: ServeSettings, config: Config) -> None:
    """Serve a model over an OpenAI-compatible HTTP API.

    The model is fetched first if it is not on this machine. When it can answer, one line is printed:

    ready http://127.0.0.1:8000/v1 model=smollm2-135m
    """
    log.configure(verbose=settings.verbose)
    if config.file:
        logger.info("configuration from %s", config.file)
    options = make_options(settings)
    check_exposure(settings.host, options.keys, insecure=settings.insecure)
    check_tls(options)
    with claim_output() as output:
        plugins = PluginHost.prepare(config)
        if settings.strict_plugins:
            plugins.require_all()
        try:
            _serve(settings, options, plugins, output)
        finally:
            plugins.shutdown(SHUTDOWN_S)


def _serve(settings: ServeSettings, options: ServerOptions, plugins: PluginHost, output: TextIO) -> None:
    check_choice(settings.generation_config)
    wanted = read_stage_options(settings, plugins)
    pipeline = PipelineOptions(
        limits=read_limits(settings),
        batching=make_policy(plugins, "batching", settings.batching),
        preemption=make_policy(plugins, "preemption", settings.preemption),
        backlog=UnreadOutput(settings.max_unread * 2**20),
        step_timeout_s=settings.step_timeout or None,
        load_timeout_s=settings.load_timeout,
    )
    routing = make_policy(plugins, "routing", settings.routing)
    from parallax_core.server.event_loop import run_loop
    from parallax_core.server.run import bind_socket

    with (
        bind_socket(settings.host, settings.port) as sock,
        TemporaryDirectory(prefix="parallax-") as private,
        make_display() as display,
    ):
        catalog = Catalog(plugins)
        # Stages in processes of their own fetch their layers by themselves.
        fetch = catalog.fetch_without_weights if wanted.uses_workers else catalog.fetch
        folder = fetch(settings.model, display)
        plan = plan_stages(settings, folder, display)
        config = read_object(folder.path / "config.json")
        offers = wanted.choose_offers(config)
        serving = Deployment(
            model_id=name_model(settings.model, folder),
            folder=folder.path,
            text=ModelTokenizer(folder.path, settings.generation_config),
            stages=wanted.make_stages(plan, offers, Path(private), name_for_workers(catalog, settings.model)),
            pipeline=pipeline,
            topology=wanted.place_layers(config),
            routing=routing,
            advice=collect_advice(offers),
        )
        event_bus = EventBus(plugins.observers())
        try:
            run_loop(_run(serving, ServeContext(options, sock, display, plugins, event_bus, output)), options.request_s)
        finally:
            event_bus.close(AUDIENCE_S)


def read_limits(settings: ServeSettings) -> Limits:
    """Return how much a user wants a replica to take on."""
    return Limits(
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        max_batch_tokens=settings.max_batch_tokens,
    )


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """What is served, and how."""

    model_id: str
    folder: Path
    text: ModelTokenizer
    stages: LocalStages | RemoteStages
    pipeline: PipelineOptions
    topology: ParallelConfig
    routing: RoutingPolicy
    advice: tuple[str, ...] = ()
    """What the user could do for more speed."""

    def make_engines(self, on_lost: Callable[[int, str], None] | None = None) -> list[PipelineEngine]:
        """Return an engine for each replica; ``on_lost`` is told its rank and the reason when one loses a stage."""
        engines = []
        for rank, places in enumerate(self.topology.replicas):
            executor = self.stages.gather(rank, places, self.pipeline)
            lost = partial(on_lost, rank) if on_lost else None
            engines.append(PipelineEngine(executor, self.text.decode, self.pipeline, lost))
        return engines

    def list_waiting(self) -> list[NodeStatus]:
        """Return the nodes that have joined and have nothing to do."""
        return (
            [describe_node(each) for each in self.stages.registry.waiting]
            if isinstance(self.stages, RemoteStages)
            else []
        )

    @asynccontextmanager
    async def nodes_joining(self) -> AsyncIterator[None]:
        """Have nodes join, if there are any but this."""
        registry = self.stages.registry if isinstance(self.stages, RemoteStages) else None
        if registry is not None:
            await registry.start()
            logger.info("head listens at %s", registry.address)
        try:
            yield
        finally:
            if registry is not None:
                await registry.stop()


def name_model(model: str, folder: ModelFolder) -> str:
    """Return what clients call the model: a folder's name, and anything else as it was written."""
    return folder.path.resolve().name if Path(model).expanduser().is_dir() else model


def name_for_workers(catalog: Catalog, model: str) -> str:
    """Return what worker processes of this machine find the model by, whatever plugins their environments have.

    That is its folder, once it is complete.
    """
    found = catalog.find(model)
    return str(found.path.resolve()) if found else catalog.qualify(model)


@dataclass(frozen=True, slots=True)
class ServeContext:
    """What stands around the engine."""

    options: ServerOptions
    sock: socket.socket
    display: Display
    plugins: PluginHost
    event_bus: EventBus
    output: TextIO
    """For the line that says it is ready, and nothing else."""


async def _run(serving: Deployment, front: ServeContext) -> None:
    from parallax_core.server.app import make_app
    from parallax_core.server.drain import Drain
    from parallax_core.server.metrics import ServerMetrics
    from parallax_core.server.plugin_routes import extend_app
    from parallax_core.server.quota import Quota
    from parallax_core.server.run import ServerSite, run_server
    from parallax_core.server.service import Service
    from parallax_core.server.tokenizer_pool import PoolLimits, TokenizerPool
    from parallax_core.server.tracing import OtelTracer

    engines = serving.make_engines(partial(_tell_loss, front.event_bus, serving.model_id))

    find_room = partial(_find_room, engines)
    watch, policy = RequestEvents(serving.model_id, front.event_bus.tell), serving.routing
    router = EventRouter(engines, policy, find_room, watch) if front.event_bus else Router(engines, policy, find_room)
    drain, tracer = Drain(), OtelTracer(front.options.otlp_endpoint) if front.options.otlp_endpoint else None
    pool_limits = PoolLimits.of(front.options, serving.pipeline.limits)
    reader = TokenizerPool(str(serving.folder), serving.model_id, pool_limits, serving.text.generation)
    service = Service(
        serving.model_id,
        router,
        serving.text,
        reader,
        ServerMetrics(tracer),
        find_max_length=find_room,
        quota=Quota(front.options),
        backlog=serving.pipeline.backlog,
        list_waiting=serving.list_waiting,
    )
    app = make_app(service, front.options, drain)
    extend_app(app, router, front.plugins)

    def announce() -> None:
        _announce(serving, front, engines)

    async with serving.nodes_joining():
        await run_server(ServerSite(app, service, front.options, drain), front.sock, announce)
    if tracer is not None:
        tracer.close()


def _announce(serving: Deployment, front: ServeContext, engines: Sequence[PipelineEngine]) -> None:
    """Say that the server can answer, what it runs, and what would make it faster."""
    front.display.__exit__(None, None, None)
    _log_defaults(serving.text.defaults)
    for engine in engines:
        for info in engine.infos:
            _log_stage(info)
    for limits in {engine.limits for engine in engines}:
        if limits is not None:
            _log_limits(limits, serving.stages.plan)
    print(f"ready {_url(front.sock, front.options)} model={serving.model_id}", file=front.output, flush=True)
    for advice in serving.advice:
        print(f"hint: {advice}", file=sys.stderr, flush=True)


def _find_room(engines: Sequence[PipelineEngine]) -> int:
    """Return the longest sequence that any replica can serve, in tokens; 0 before all are ready."""
    return min(engine.max_length for engine in engines)


def _tell_loss(event_bus: EventBus, model: str, replica: int, reason: str) -> None:
    event_bus.tell(StageLoss(at=time.time(), model=model, replica=replica, reason=reason))


def _log_defaults(defaults: RequestDefaults) -> None:
    if stated := defaults.describe():
        values = " ".join(f"{name}={value:g}" for name, value in stated.items())
        logger.info("default sampling %s (OpenAI's: --generation-config off)", values)


def _log_stage(info: StageInfo) -> None:
    pool = info.pools[0]
    logger.info(
        "stage ready layers=%d-%d device=%r dtype=%s weights=%.0fMB kv_room=%d tokens, of which a request may hold %d",
        info.layers.start,
        info.layers.stop,
        info.device,
        info.dtype,
        info.weight_bytes / 10**6,
        pool.num_pages * pool.page_size,
        min(info.context_length, pool.num_pages * pool.page_size),
    )


def _log_limits(limits: ReplicaLimits, plan: StagePlan) -> None:
    logger.info(
        "limits of a replica max_running=%d max_waiting=%d max_batch_tokens=%d, of a stage memory_fraction=%g",
        limits.max_running,
        limits.max_waiting,
        limits.max_batch_tokens,
        plan.memory_fraction,
    )


def _url(sock: socket.socket, options: ServerOptions) -> str:
    host, port = sock.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'https' if options.tls_cert else 'http'}://{place}/v1"
