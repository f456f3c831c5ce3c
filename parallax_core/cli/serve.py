"""``parallax serve``."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import os
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from parallax_core.base import log
from parallax_core.base.errors import UsageError
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.cli.command import new_app
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more, with tracebacks.")] = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API.

    The model is fetched first if it is not on this machine. When it can answer, one line is printed:

    ready http://127.0.0.1:8000/v1 model=smollm2-135m
    """
    log.configure(verbose=verbose)
    keys = read_keys(api_key_file)
    check_exposure(host, keys, insecure=insecure)
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
        asyncio.run(_run(serving, keys, sock, display))


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


async def _run(serving: Serving, keys: frozenset[str], sock: socket.socket, display: Display) -> None:
    from parallax_core.server.app import make_app
    from parallax_core.server.chat import Served
    from parallax_core.server.run import run_server

    engines = serving.make_engines()

    def list_stages() -> list[StageInfo]:
        return [info for engine in engines for info in engine.infos]

    router = Router(engines, LeastPendingTokens(), lambda: min(info.context_length for info in list_stages()))
    app = make_app(Served(serving.model_id, router, serving.text), keys)

    def announce() -> None:
        display.__exit__(None, None, None)
        for info in list_stages():
            _log_stage(info)
        print(f"ready {_url(sock)} model={serving.model_id}", flush=True)

    await run_server(app, router, sock, announce)


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


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def read_keys(path: Path | None) -> frozenset[str]:
    """Return the API keys of a file and of the environment; blank lines and lines that begin with # are none.

    Raises:
        UsageError: if the file cannot be read, or has no key in it.
    """
    keys = _read_lines(path) | {key for key in (os.environ.get("PARALLAX_API_KEY", "").strip(),) if key}
    if bad := [key for key in keys if not key.isascii() or len(key.split()) != 1]:
        message = f"{len(bad)} of the API keys cannot be sent in an HTTP header"
        raise UsageError(message, "use letters, digits and punctuation of ASCII, without spaces")
    return frozenset(keys)


def _read_lines(path: Path | None) -> set[str]:
    if path is None:
        return set()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"the API keys cannot be read: {error}"
        raise UsageError(message, "give --api-key-file a text file with one key a line") from error
    found = {line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")}
    if not found:
        message = f"there is no API key in {path}"
        raise UsageError(message, "write one key a line")
    return found


def check_exposure(host: str, keys: frozenset[str], *, insecure: bool) -> None:
    """Refuse to listen off loopback without an API key, unless told to.

    Raises:
        UsageError: if it would.
    """
    if keys or is_loopback(host):
        return
    if not insecure:
        message = f"listening on {host} lets others use this server, and there is no API key"
        raise UsageError(message, "give --api-key-file or set PARALLAX_API_KEY; --insecure does without")
    logger.warning("INSECURE: anyone who reaches %s can use this server, without an API key", host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
