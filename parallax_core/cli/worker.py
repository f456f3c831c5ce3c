"""The command ``parallax worker``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import msgspec

from parallax_core.base import log
from parallax_core.base.machine import Machine
from parallax_core.base.processes import end_children_of_orphan, end_with_parent
from parallax_core.cli.command import new_app
from parallax_core.cli.contacts import Contacts, tell_contacts
from parallax_core.cli.option import from_section
from parallax_core.config.config import Config
from parallax_core.config.home import keys_folder
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.deployment import WorkerRequest
from parallax_core.contracts.transport import Transport
from parallax_core.deploy.backend_options import prepare_plugins
from parallax_core.deploy.deployment_kind import FIXED, FOUND, call
from parallax_core.deploy.head_access import HeadAccess, WorkRequest
from parallax_core.deploy.node_services import WorkerContext, make_services, open_transport
from parallax_core.deploy.stage_opener import StageOpener, make_opener
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace, serve_again
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.shared_layers import OpenStage, SharedLayers
from parallax_core.node.worker.stop import serve_until_signal
from parallax_core.plugins.host import PluginHost
from parallax_core.wire.membership import Join

SHUTDOWN_S = 0.5
"""Seconds that plugins have to shut down."""


logger = logging.getLogger(__name__)

app = new_app()


@app.command()
@from_section("worker", WorkerSettings)
def worker(settings: WorkerSettings, config: Config) -> None:
    """Run stages of a model for a server on another machine.

    It joins the server at --connect, and runs the layers that the server assigns. If the server goes away, it tries to
    join again. To end it without loss, use SIGTERM, Ctrl-C or `parallax cluster leave`. On the server's machine:

    parallax serve org/model --stages 2 --listen tcp://0.0.0.0:9000

    With a model, --layers and --announce, it runs these layers for a server that finds it:

    parallax worker org/model --layers 0-15 --announce CODE

    parallax serve org/model --find CODE

    Off loopback both machines need keys: see `parallax keys --help`.
    """
    name = settings.deployment or (FOUND if settings.announce or settings.layers or settings.model else FIXED)
    plugins = PluginHost.prepare(config) if name != FIXED else PluginHost([])
    offer = plugins.deployments().get(name) if name != FIXED else None
    request: WorkerRequest = WorkRequest(settings, plugins, partial(run_worker, config), partial(_tell, settings))
    if offer is not None and offer.spec.work is not None:
        call(offer, offer.spec.work, request)
    else:
        request.run()


def _tell(settings: WorkerSettings) -> None:
    """Say what leaves this machine."""
    if not settings.supervised:  # else its server has said so
        seeks = bool(settings.announce) and settings.discovery
        tell_contacts(Contacts(links=True, seeks=seeks), offline=settings.offline, verbose=settings.verbose)


class WorkerView(Protocol):
    """Shows what a worker loads and does."""

    def watch(self, open_stage: OpenStage) -> OpenStage:
        """Return a function that opens stages, whose calls are shown."""

    def watching(self, place: HeadPlace, session: WorkerSession) -> AbstractAsyncContextManager[None]:
        """Return a context in which a session is shown."""


def run_worker(config: Config, settings: WorkerSettings, access: HeadAccess, view: WorkerView | None = None) -> None:
    """Run stages as the node that ``settings`` name until this process is told to end; ``view`` shows that."""
    node = settings.node or ""
    log.configure(verbose=settings.verbose, node=node)
    parent = os.getppid()
    if settings.supervised:
        end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes of scripts ignore it
    plugins = prepare_plugins(settings, config)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # the normal way to end it
            asyncio.run(_work(WorkerPlan(settings, node, plugins, config.file, access), view))
    finally:
        plugins.shutdown(SHUTDOWN_S)
        if settings.supervised:
            end_children_of_orphan(parent)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker process runs."""

    settings: WorkerSettings
    node: str
    plugins: PluginHost
    config_file: Path | None
    access: HeadAccess


async def _work(plan: WorkerPlan, view: WorkerView | None) -> None:
    settings, node, plugins = plan.settings, plan.node, plan.plugins
    opener = make_opener(settings, plugins)
    _warm_up(settings, opener)
    keys = dict(plan.access.keys)  # turning to another head changes them
    transport = open_transport(settings, plugins, node, keys, settings.listen)
    await transport.start()
    services = NodeServices(transport)
    open_stage: OpenStage = opener.open_stage
    layers = SharedLayers(view.watch(open_stage) if view is not None else open_stage, settings.max_context)
    place = HeadPlace(settings.connect, settings.head, node)
    describe = cache(partial(_describe_node, plan, transport, opener))
    given = (node, services, settings, plugins, plan.config_file, opener, keys, layers, place, describe)
    context = WorkerContext(*given, plan.access.api_url)
    for service in make_services(plugins, "node", context):
        services.add(service)
    session, beside = WorkerSession(services, node, layers), plan.access.beside
    try:
        shown = view.watching(place, session) if view is not None else contextlib.nullcontext()
        async with beside(transport, place) if beside is not None else contextlib.nullcontext(), shown:
            await serve_until_signal(session, _serve(plan, place, session, describe()), settings.drain)
    finally:
        await session.close()
        await transport.stop()


def _warm_up(settings: WorkerSettings, opener: StageOpener) -> None:
    if settings.supervised:  # a silent node counts as lost; others import it when a process has done so before
        opener.warm_up()
    gc.freeze()  # modules stay: scanning them, and freeing them at the end, takes seconds


def _describe_node(plan: WorkerPlan, transport: Transport, opener: StageOpener) -> Join:
    """Return what the node says of itself when it joins a head."""
    host, memory = socket.gethostname()[:256], opener.find_memory()
    place = Machine().identify(keys_folder())
    join = Join(transport.address, opener.names, host, os.getpid(), memory=memory, place=place)
    if (fixed := plan.access.fixed) is None:
        return join
    layers = fixed.layers
    return msgspec.structs.replace(join, model=fixed.model, start=layers.start, stop=layers.stop, is_fixed=True)


async def _serve(plan: WorkerPlan, place: HeadPlace, session: WorkerSession, join: Join) -> None:
    """Join the head, and join it again whenever it is lost, until this node leaves.

    Raises:
        StageLost: if the stage, or that of a lease, is lost.
        ParallaxError: whatever `WorkerSession.serve` raises.
    """
    if plan.settings.supervised and not plan.settings.as_joined:
        serving = session.serve(place.address, place.head, join)
    else:
        serving = serve_again(session, place, join, plan.access.seek, plan.access.tries)
    await session.services.run_beside(serving)
