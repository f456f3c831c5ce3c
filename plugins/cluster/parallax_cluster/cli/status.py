"""Show the replicas and stages of a running server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_core.api import ParallaxError
from parallax_core.api.cli import align, new_app

TIMEOUT_S = 10.0
"""Seconds a server may take to answer."""

MOST_LINKS = 2
"""Links of a node that are shown."""
NODE = ("node", "host", "pid", "address")

Show = Callable[[str], None]
Cluster = dict[str, Any]

app = new_app()


@app.command()
def status(
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1, max=3600, metavar="S")] = 1.0,
) -> None:
    """Show the replicas and stages of a running server, and how they fare.

    A key is taken from PARALLAX_API_KEY. The server answers also while it loads its model.
    """
    client = Client(find_url(url), TIMEOUT_S)
    describe = json.dumps if as_json else render
    first = describe(client.cluster())
    if not watch:
        print(first)
        return
    _watch(lambda: describe(client.cluster()), first, interval, is_live=not as_json and sys.stdout.isatty())


def render(cluster: Cluster) -> str:
    """Return the status as text for a terminal."""
    nodes = cluster.get("nodes", [])  # of a server that is new enough to report them
    return "\n".join([*_render_head(cluster), *_render_waiting(cluster["waiting"]), *_render_profiles(nodes)])


def _watch(ask: Callable[[], str], first: str, interval_s: float, *, is_live: bool) -> None:
    """Show the status repeatedly, in place on a terminal, else one after another; a lost server may come back."""
    if is_live:
        from rich.live import Live
        from rich.text import Text

        with Live(Text(first, no_wrap=True), auto_refresh=False, screen=True) as live:
            _repeat(ask, lambda text: live.update(Text(text, no_wrap=True), refresh=True), interval_s)
    else:
        print(first, flush=True)
        _repeat(ask, lambda text: print(text, flush=True), interval_s)


def _repeat(ask: Callable[[], str], show: Show, interval_s: float) -> None:
    while True:
        try:
            time.sleep(interval_s)
            show(ask())
        except ParallaxError as error:
            show(f"error: {error.message}")
        except KeyboardInterrupt:
            return


def _render_head(cluster: Cluster) -> Iterator[str]:
    yield f"{cluster['model'] or 'no model'}: {_state(cluster)}"
    for each in cluster["models"]:
        if each["id"] != cluster["model"]:
            yield f"{each['id']}: {each['state']}{', could not be loaded: ' + each['error'] if each['error'] else ''}"
    for replica in cluster["replicas"]:
        yield ""
        of = f" of {replica['model']}" if replica["model"] != cluster["model"] else ""
        yield f"replica {replica['rank']}{of}: {_state(replica)}{', drained' if replica['drained'] else ''}"
        yield (
            f"  {replica['running']}{_most(replica, 'max_running')} running, "
            f"{replica['waiting']}{_most(replica, 'max_waiting')} waiting, "
            f"{replica['pending_tokens']} tokens to compute, hop {_milliseconds(replica['hop_seconds'])}, "
            f"{replica['losses']} losses"
        )
        if replica["stages"]:
            titles = ("STAGE", "LAYERS", "NODE", "HOST", "PID", "BACKEND", "DEVICE", "DTYPE", "WEIGHTS")
            more = ("PAGES", "STEP", "TOKENS", "QUEUED", "RESTARTS")
            yield from align([(*titles, *more), *map(_render_stage, replica["stages"])])


def _render_stage(stage: Cluster) -> tuple[object, ...]:
    layers, times = stage["layers"], stage["step_seconds"]
    pools = [f"{pool['used']}/{pool['total']}" for pool in stage["pools"]]
    return (
        stage["stage"],
        f"{layers[0]}-{layers[1]}" if layers else "-",
        stage["node"] or "-",
        *(stage[name] or "-" for name in ("host", "pid", "backend", "device", "dtype")),
        f"{stage['weight_bytes'] / 10**6:.0f} MB",
        " ".join(pools) or "-",
        _milliseconds(times["median"] if times else None),
        *(stage[name] for name in ("tokens", "queued", "restarts")),
    )


def _render_waiting(nodes: list[Cluster]) -> Iterator[str]:
    if nodes:
        rows = [(*(each[name] for name in NODE), ",".join(each["backends"]), _render_spare(each)) for each in nodes]
        yield ""
        yield "nodes that wait for a stage:"
        yield from align([("NODE", "HOST", "PID", "ADDRESS", "BACKENDS", "SPARE FOR"), *rows])


def _render_profiles(nodes: list[Cluster]) -> Iterator[str]:
    rows = [_render_profile(each) for each in nodes if each["profile"]]
    if rows:
        yield ""
        yield "reports of the nodes:"
        yield from align([("NODE", "DEVICE", "MEMORY", "TFLOPS", "READS", "DISK", "LINKS"), *rows])


def _render_profile(node: Cluster) -> tuple[object, ...]:
    found = node["profile"]
    total = f" of {found['total_memory'] / 10**9:.1f}" if found["total_memory"] else ""
    links = [f"{each['peer']} {_milliseconds(each['round_trip_seconds'])}" for each in found["links"]]
    more = len(links) - MOST_LINKS
    return (
        node["node"],
        f"{found['device'] or '-'}{'' if found['measured'] else ' (typical)'}",
        f"{found['memory'] / 10**9:.1f}{total} GB",
        f"{found['flops'] / 10**12:.3g}",
        f"{found['bandwidth'] / 10**9:.4g} GB/s",
        f"{found['disk_free'] / 10**9:.0f} GB" if found["disk_free"] else "-",
        ", ".join(links[:MOST_LINKS]) + (f" and {more} more" if more > 0 else "") or "-",
    )


def _render_spare(node: Cluster) -> str:
    """Return what a node is a spare for, if the server is new enough to report it."""
    spare = node.get("spare")
    if spare is None:
        return "-"
    layers = f", layers {spare['layers'][0]}-{spare['layers'][1]}" if spare["layers"] else ""
    return f"stage {spare['stage']}{layers}{'' if spare['loaded'] else ' (loading)'}"


def _most(replica: Cluster, name: str) -> str:
    """Return the limit called ``name``, if the server is new enough to report it."""
    limits = replica.get("limits")
    return f"/{limits[name]}" if limits else ""


def _state(what: Cluster) -> str:
    return f"{what['status']} ({what['reason']})" if what["reason"] else str(what["status"])


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f} ms"
