"""The command ``parallax worker``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from parallax_core.base import log
from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.base.ids import is_further
from parallax_core.base.machine import Machine
from parallax_core.checkpoint.reader import read_config
from parallax_core.checkpoint.weights_version import digest_parts
from parallax_core.cli.command import new_app
from parallax_core.cli.option import from_section
from parallax_core.cli.worker_record import recorded
from parallax_core.config.config import Config
from parallax_core.config.home import known_terms_file
from parallax_core.config.worker import WorkerSettings, name_node
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import LayerRange, Stage
from parallax_core.contracts.token_engine import EnginePlan
from parallax_core.contracts.transport import Transport, TransportPlan, TransportSpec
from parallax_core.deploy.backend_options import prepare_plugins
from parallax_core.deploy.further_nodes import make_further_command
from parallax_core.deploy.node_reports import make_reporter
from parallax_core.models.backends import choose_backend, find_backends, probe
from parallax_core.models.catalog import Catalog
from parallax_core.models.engines import open_engine
from parallax_core.models.layer_fetch import LayerFetcher
from parallax_core.models.stages import open_stage
from parallax_core.node.channel import STRANGERS
from parallax_core.node.membership.supervisor import end_children_of_orphan, end_with_parent
from parallax_core.node.profile.link_prober import LinkProber
from parallax_core.node.worker.allowed_models import ANYTHING, AllowedModels
from parallax_core.node.worker.engine_session import OpenedEngine
from parallax_core.node.worker.further import FurtherNodes
from parallax_core.node.worker.rejoin import HeadPlace, SeekHead, serve_again
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.stop import serve_until_signal
from parallax_core.node.worker.terms import HeadTerms
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.server.forwarder import ApiForwarder, find_api_url
from parallax_core.wire.engine import AssignEngine
from parallax_core.wire.membership import Assign, Join

SHUTDOWN_S = 0.5
"""Seconds that plugins have to shut down."""

app = new_app()


@app.command()
@from_section("worker", WorkerSettings)
def worker(settings: WorkerSettings, config: Config) -> None:
    """Run stages of a model for a server on another machine.

    It joins the server at --connect, and runs the layers that the server assigns. If the server goes away, it tries to
    join again. To end it without loss, use SIGTERM, Ctrl-C or `parallax leave`. On the server's machine:

    parallax serve org/model --stages 2 --listen tcp://0.0.0.0:9000

    Off loopback both machines need keys: see `parallax keys --help`.
    """
    if not settings.connect:
        raise UsageError("the address of the server is missing", "give it: --connect tcp://HOST:PORT")
    keys = {settings.head: bytes.fromhex(settings.trust_head)} if settings.trust_head else {}
    run_worker(replace(settings, node=settings.node or name_node(os.getpid())), config, HeadAccess(keys))


@dataclass(frozen=True, slots=True)
class HeadAccess:
    """What a worker that has joined by a code knows of its head."""

    keys: Mapping[str, bytes] = field(default_factory=dict)
    """The keys of heads to trust, by name."""
    api: socket.socket | None = None
    """Where clients of this machine are served, by forwarding to the head; None: nowhere."""
    seek: SeekHead | None = None
    """Finds the head if it is not where it was; None: it is not looked for."""


def run_worker(settings: WorkerSettings, config: Config, access: HeadAccess = HeadAccess()) -> None:
    """Run stages as the node that ``settings`` name until this process is told to end."""
    node = settings.node or ""
    log.configure(verbose=settings.verbose, node=node)
    parent = os.getppid()
    if settings.supervised:
        end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes of scripts ignore it
    plugins = prepare_plugins(settings, config)
    try:
        with contextlib.suppress(KeyboardInterrupt), _recorded(settings, node, access.api):  # the normal way to end it
            asyncio.run(_work(WorkerPlan(settings, node, plugins, config.file, access)))
    finally:
        plugins.shutdown(SHUTDOWN_S)
        if settings.supervised:
            end_children_of_orphan(parent)


def _recorded(settings: WorkerSettings, node: str, api: socket.socket | None) -> AbstractContextManager[None]:
    """Return a context that keeps a record of this worker, if an operator started it."""
    url = find_api_url(api) if api is not None else ""
    return contextlib.nullcontext() if settings.supervised else recorded(node, settings.connect, url)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker process runs."""

    settings: WorkerSettings
    node: str
    plugins: PluginHost
    config_file: Path | None
    access: HeadAccess


class StageOpener:
    """Opens the stages and engines assigned to a worker, with the installed plugins."""

    def __init__(
        self,
        plugins: PluginHost,
        backends: list[Offer[BackendSpec]],
        fault: ParallaxError | None = None,
        allowed: Sequence[str] = (),
        memory: int | None = None,
    ) -> None:
        """Open stages with one of ``backends``, the best first; if there are none, raise ``fault`` instead.

        Args:
            plugins: the installed plugins.
            backends: what opens the stages.
            fault: why there is no backend.
            allowed: the models that may be loaded, see `AllowedModels`.
            memory: the bytes that a stage may use, and that its pages take their share of; None: all that are free.
        """
        self._plugins = plugins
        catalog = Catalog(plugins)
        self._fetcher = LayerFetcher(plugins, catalog)
        self._allowance = AllowedModels(catalog, allowed)
        self._backends = backends
        self._fault = fault
        self._memory = memory

    @property
    def names(self) -> tuple[str, ...]:
        """The backends it can open stages with."""
        return tuple(offer.spec.name for offer in self._backends)

    @property
    def backends(self) -> Sequence[Offer[BackendSpec]]:
        """The backends it can open stages with, the best first."""
        return self._backends

    def warm_up(self) -> None:
        """Import the best backend, which may block the process for seconds."""
        for offer in self._backends[:1]:
            with contextlib.suppress(ParallaxError):  # raised again when a stage is opened
                offer.load(offer.spec.factory)

    def open_stage(self, assign: Assign, progress: Progress) -> Stage:
        """Find or fetch the layers of the model, and load them.

        Raises:
            ParallaxError: if they cannot be fetched or loaded, or the model is not allowed.
        """
        layers = LayerRange(assign.start, assign.stop) if assign.stop else None
        offer, folder = self._prepare(assign, layers, progress)
        plan = StagePlan(
            model=folder.path,
            listed_weights=folder.listed_weights,
            layers=layers,
            dtype=assign.dtype,
            device=assign.device,
            memory_fraction=self._limit_share(assign.memory_fraction),
            max_batch_tokens=assign.max_batch_tokens,
            max_running=assign.max_running,
            progress=progress,
        )
        return open_stage(self._plugins, offer, plan)

    def open_engine(self, assign: AssignEngine, progress: Progress) -> OpenedEngine:
        """Find or fetch the model, and return an engine for it, not started.

        Raises:
            ParallaxError: if it cannot be fetched, or the backend refuses it, or the model is not allowed.
        """
        offer, folder = self._prepare(assign, None, progress)
        plan = EnginePlan(
            model=folder.path,
            listed_weights=folder.listed_weights,
            dtype=assign.dtype,
            device=assign.device,
            memory_fraction=self._limit_share(assign.memory_fraction),
            max_batch_tokens=assign.max_batch_tokens,
            max_running=assign.max_running,
            progress=progress,
        )
        parts = {**digest_parts(folder.path), **folder.listed_weights}
        return OpenedEngine(open_engine(self._plugins, offer, plan), parts)

    def _prepare(
        self, assign: Assign | AssignEngine, layers: LayerRange | None, progress: Progress
    ) -> tuple[Offer[BackendSpec], ModelFolder]:
        """Return the backend for a model, and the folder with at least some of its layers; None: with all."""
        if self._fault is not None:
            raise self._fault
        offers = [offer for offer in self._backends if assign.backend in {"", offer.spec.name}]
        if not offers:
            message = f"this node has no backend {assign.backend!r}, only {', '.join(self.names)}"
            raise ParallaxError(message, "install it there, or name another --backend")
        self._allowance.check(assign.model)
        folder = self._fetcher.fetch(assign.model, layers, progress)
        return choose_backend(self._plugins, offers, read_config(folder.path)), folder

    def _limit_share(self, fraction: float) -> float:
        """Return the share of the free memory that is ``fraction`` of the memory for this node."""
        if self._memory is None or not (free := self._find_free()):
            return fraction
        return fraction * min(1.0, self._memory / free)

    def find_memory(self) -> int:
        """Return the bytes that a stage may use; 0: unknown, because some backend uses a device's own memory."""
        return self._find_free() if self._memory is None else self._memory

    def _find_free(self) -> int:
        devices = [probe(offer).device for offer in self._backends]
        return (Machine().free_memory() or 0) if all(device.startswith("cpu") for device in devices) else 0


def make_opener(settings: WorkerSettings, plugins: PluginHost) -> StageOpener:
    """Return the opener of stages; a worker that a server started reports a missing backend when it gets a stage.

    Raises:
        ParallaxError: if a node started by hand has no backend that can run.
    """
    is_own = settings.supervised and not is_further(settings.node or "")  # a server trusts its own models
    allowed = (ANYTHING,) if is_own else settings.allow_model
    try:
        return StageOpener(plugins, find_backends(plugins, settings.backend), None, allowed, settings.memory_bytes)
    except ParallaxError as error:
        if not settings.supervised:
            raise
        return StageOpener(plugins, [], error, allowed, settings.memory_bytes)


async def _work(plan: WorkerPlan) -> None:
    settings, node, plugins = plan.settings, plan.node, plan.plugins
    opener = make_opener(settings, plugins)
    if settings.supervised:  # a silent node counts as lost; others import it when a process has done so before
        opener.warm_up()
    gc.freeze()  # modules stay: scanning them, and freeing them at the end, takes seconds
    keys = dict(plan.access.keys)  # turning to another head changes them
    transport = _make_transport(plan, keys)
    await transport.start()
    prober = LinkProber(transport, node)
    reporter = make_reporter(settings, plan.config_file, plugins, opener.backends, prober)
    session = WorkerSession(transport, node, opener.open_stage, opener.open_engine, reporter)
    place = HeadPlace(settings.connect, settings.head, node)
    if not is_further(node):
        session.further = FurtherNodes(node, partial(_make_further, plan, place, keys))
    if not settings.supervised:
        session.terms = HeadTerms(settings.connect, keys, known_terms_file())
    try:
        async with _forwarding(plan, place, transport):
            await serve_until_signal(session, _serve(plan, place, session, opener, transport.address), settings.drain)
    finally:
        await session.close()
        await transport.stop()


def _make_further(plan: WorkerPlan, place: HeadPlace, keys: Mapping[str, bytes], node: str) -> list[str]:
    """Return the command line of a further node, which joins the head that this node has found, by the key it has."""
    settings = replace(plan.settings, connect=place.address)
    return make_further_command(settings, plan.config_file, keys, node)


def _forwarding(plan: WorkerPlan, place: HeadPlace, transport: Transport) -> AbstractAsyncContextManager[None]:
    """Return a context in which clients of this machine are served, if they are."""
    if plan.access.api is None:
        return contextlib.nullcontext()
    return ApiForwarder(transport, place).listening(plan.access.api)


def _make_transport(plan: WorkerPlan, keys: Mapping[str, bytes]) -> Transport:
    settings, spec = plan.settings, plan.plugins.transports().get(plan.settings.transport)
    listen = settings.listen or _place(spec, settings.connect, plan.node)
    timeout_s = settings.peer_timeout or spec.spec.timeout_s
    options = TransportPlan(node=plan.node, listen=listen, timeout_s=timeout_s, strangers=STRANGERS, heads=keys)
    return spec.load(spec.spec.factory)(options)


async def _serve(plan: WorkerPlan, place: HeadPlace, session: WorkerSession, opener: StageOpener, address: str) -> None:
    """Join the head, and join it again whenever it is lost, until this node leaves."""
    memory, host = opener.find_memory(), socket.gethostname()[:256]
    join = Join(address, opener.names, host, os.getpid(), memory=memory)
    if plan.settings.supervised:
        await session.serve(place.address, place.head, join)
    else:
        await serve_again(session, place, join, plan.access.seek)


def _place(offer: Offer[TransportSpec], connect: str, node: str) -> str:
    if offer.spec.place_near is None:
        message = f"the transport {offer.spec.name!r} cannot choose an address for this node to listen at"
        raise UsageError(message, "give an address that other nodes can reach: --listen ADDRESS")
    return offer.load(offer.spec.place_near)(connect, node)
