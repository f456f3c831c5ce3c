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
from parallax_core.cli.edge import check_exposure, check_tls, make_edge
from parallax_core.cli.option import from_section
from parallax_core.cli.progress import Display, make_display
from parallax_core.cli.topology import Local, Remote
from parallax_core.cli.wishes import collect_advice, read_wishes
from parallax_core.config.config import Config
from parallax_core.config.parallel import ParallelConfig
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.event import StageLoss
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.status import NodeStatus, ReplicaLimits
from parallax_core.engine.limits import Limits
from parallax_core.node.backlog import Backlog
from parallax_core.node.catalog import Catalog
from parallax_core.node.generation import Defaults, check_choice
from parallax_core.node.observer import Audience
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.plan import PipelinePlan
from parallax_core.node.policy import make_policy
from parallax_core.node.router import Router
from parallax_core.node.status import describe_node
from parallax_core.node.text import ModelText
from parallax_core.node.watch import Watch, WatchedRouter
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.output import claim_output
from parallax_core.server.edge import Edge

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
    edge = make_edge(settings)
    check_exposure(settings.host, edge.keys, insecure=settings.insecure)
    check_tls(edge)
    with claim_output() as output:
        plugins = PluginHost.prepare(config)
        if settings.strict_plugins:
            plugins.require_all()
        try:
            _serve(settings, edge, plugins, output)
        finally:
            plugins.shutdown(SHUTDOWN_S)


def _serve(settings: ServeSettings, edge: Edge, plugins: PluginHost, output: TextIO) -> None:
    check_choice(settings.generation_config)
    wanted = read_wishes(settings, plugins)
    pipeline = PipelinePlan(
        limits=read_limits(settings),
        batching=make_policy(plugins, "batching", settings.batching),
        preemption=make_policy(plugins, "preemption", settings.preemption),
        backlog=Backlog(settings.max_unread * 2**20),
        step_timeout_s=settings.step_timeout or None,
        load_timeout_s=settings.load_timeout,
    )
    routing = make_policy(plugins, "routing", settings.routing)
    from parallax_core.server.loop import run_loop
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
        serving = Serving(
            model_id=name_model(settings.model, folder),
            folder=folder.path,
            text=ModelText(folder.path, settings.generation_config),
            stages=wanted.make_stages(plan, offers, Path(private), name_for_workers(catalog, settings.model)),
            pipeline=pipeline,
            topology=wanted.place_layers(config),
            routing=routing,
            advice=collect_advice(offers),
        )
        audience = Audience(plugins.observers())
        try:
            run_loop(_run(serving, Front(edge, sock, display, plugins, audience, output)), edge.request_s)
        finally:
            audience.close(AUDIENCE_S)


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
class Serving:
    """What is served, and how."""

    model_id: str
    folder: Path
    text: ModelText
    stages: Local | Remote
    pipeline: PipelinePlan
    topology: ParallelConfig
    routing: RoutingPolicy
    advice: tuple[str, ...] = ()
    """What the user could do for more speed."""

    def make_engines(self, on_lost: Callable[[int, str], None] | None = None) -> list[PipelineEngine]:
        """Return an engine for each replica; ``on_lost`` is told its rank and the reason when one loses a stage."""
        engines = []
        for rank, places in enumerate(self.topology.replicas):
            company = self.stages.gather(rank, places, self.pipeline)
            lost = partial(on_lost, rank) if on_lost else None
            engines.append(PipelineEngine(company, self.text.decode, self.pipeline, lost))
        return engines

    def list_waiting(self) -> list[NodeStatus]:
        """Return the nodes that have joined and have nothing to do."""
        return [describe_node(each) for each in self.stages.muster.waiting] if isinstance(self.stages, Remote) else []

    @asynccontextmanager
    async def mustered(self) -> AsyncIterator[None]:
        """Have nodes join, if there are any but this."""
        muster = self.stages.muster if isinstance(self.stages, Remote) else None
        if muster is not None:
            await muster.start()
            logger.info("head listens at %s", muster.address)
        try:
            yield
        finally:
            if muster is not None:
                await muster.stop()


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
class Front:
    """What stands around the engine."""

    edge: Edge
    sock: socket.socket
    display: Display
    plugins: PluginHost
    audience: Audience
    output: TextIO
    """For the line that says it is ready, and nothing else."""


async def _run(serving: Serving, front: Front) -> None:
    from parallax_core.server.app import make_app
    from parallax_core.server.gate import Gate
    from parallax_core.server.metrics import Meter
    from parallax_core.server.quota import Quota
    from parallax_core.server.run import Site, run_server
    from parallax_core.server.served import Served
    from parallax_core.server.surface import extend_app
    from parallax_core.server.tokenizer_pool import PoolLimits, TokenizerPool
    from parallax_core.server.tracing import OtelTracer

    engines = serving.make_engines(partial(_tell_loss, front.audience, serving.model_id))

    find_room = partial(_find_room, engines)
    watch, policy = Watch(serving.model_id, front.audience.tell), serving.routing
    router = WatchedRouter(engines, policy, find_room, watch) if front.audience else Router(engines, policy, find_room)
    gate, tracer = Gate(), OtelTracer(front.edge.otlp_endpoint) if front.edge.otlp_endpoint else None
    pool_limits = PoolLimits.of(front.edge, serving.pipeline.limits)
    reader = TokenizerPool(str(serving.folder), serving.model_id, pool_limits, serving.text.generation)
    served = Served(
        serving.model_id,
        router,
        serving.text,
        reader,
        Meter(tracer),
        find_max_length=find_room,
        quota=Quota(front.edge),
        backlog=serving.pipeline.backlog,
        list_waiting=serving.list_waiting,
    )
    app = make_app(served, front.edge, gate)
    extend_app(app, router, front.plugins)

    def announce() -> None:
        _announce(serving, front, engines)

    async with serving.mustered():
        await run_server(Site(app, served, front.edge, gate), front.sock, announce)
    if tracer is not None:
        tracer.close()


def _announce(serving: Serving, front: Front, engines: Sequence[PipelineEngine]) -> None:
    """Say that the server can answer, what it runs, and what would make it faster."""
    front.display.__exit__(None, None, None)
    _log_defaults(serving.text.defaults)
    for engine in engines:
        for info in engine.infos:
            _log_stage(info)
    for limits in {engine.limits for engine in engines}:
        if limits is not None:
            _log_limits(limits, serving.stages.plan)
    print(f"ready {_url(front.sock, front.edge)} model={serving.model_id}", file=front.output, flush=True)
    for advice in serving.advice:
        print(f"hint: {advice}", file=sys.stderr, flush=True)


def _find_room(engines: Sequence[PipelineEngine]) -> int:
    """Return the longest sequence that any replica can serve, in tokens; 0 before all are ready."""
    return min(engine.max_length for engine in engines)


def _tell_loss(audience: Audience, model: str, replica: int, reason: str) -> None:
    audience.tell(StageLoss(at=time.time(), model=model, replica=replica, reason=reason))


def _log_defaults(defaults: Defaults) -> None:
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


def _url(sock: socket.socket, edge: Edge) -> str:
    host, port = sock.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'https' if edge.tls_cert else 'http'}://{place}/v1"
