"""Change the models of a running server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_core.api import ParallaxError
from parallax_core.api.cli import align, new_app

TIMEOUT_S = 10.0
"""Seconds a server may take to answer."""
LOOK_S = 0.3
"""Seconds between two looks at how far a change is."""
UNDER_WAY = {"loading", "draining", "restoring"}
RESULTS = {"load": "loaded", "unload": "unloaded", "switch": "loaded", "forget": "forgotten"}
"""By action: what a model is after it."""

ModelName = Annotated[str, typer.Argument(help="The model's name for clients; to load one, also its source.")]
DrainOption = Annotated[
    float, typer.Option(help="Seconds that running requests may take to end.", min=0, max=86400, metavar="S")
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return at once, without waiting for the end.")]


served_app, load_app, unload_app, switch_app, forget_app = (new_app() for _ in range(5))


@served_app.command()
def served(
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's JSON.")] = False,
) -> None:
    """List the models of a running server, and which are loaded.

    A key of the role admin is taken from PARALLAX_API_KEY. On a machine that has joined a server without keys, none is
    needed, and errors are not shown.
    """
    found = Client(find_url(url), TIMEOUT_S).known_models()
    print(json.dumps(found) if as_json else "\n".join(render(found)))


@load_app.command()
def load(model: ModelName, url: UrlOption = None, no_wait: NoWaitOption = False) -> None:
    """Load a model on a running server, beside those that are loaded.

    The server fetches what it needs. If the model does not fit beside the others, nothing changes.
    """
    _change(url, {"action": "load", "model": _name(model)}, is_waiting=not no_wait)


@unload_app.command()
def unload(model: ModelName, url: UrlOption = None, drain: DrainOption = 300.0, no_wait: NoWaitOption = False) -> None:
    """Unload a model of a running server, after its running requests.

    The server still knows it: requests for it get a 503 that says how it is loaded.
    """
    _change(url, {"action": "unload", "model": model, "drain_seconds": drain}, is_waiting=not no_wait)


@switch_app.command()
def switch(
    model: ModelName,
    url: UrlOption = None,
    replaces: Annotated[
        str | None,
        typer.Option("--from", help="The model to unload; by default the only one that is loaded.", metavar="MODEL"),
    ] = None,
    drain: DrainOption = 300.0,
    drain_first: Annotated[
        bool, typer.Option("--drain-first", help="Unload before loading: when there is no memory for both.")
    ] = False,
    no_wait: NoWaitOption = False,
) -> None:
    """Switch a running server to another model, uninterrupted.

    The model is loaded beside the old one, which answers until the new one can; then the old one is unloaded. If the
    new one cannot be loaded, the old one stays.
    """
    body: dict[str, Any] = {"action": "switch", "model": _name(model), "drain_seconds": drain}
    body |= {"drain_first": drain_first, **({"replaces": replaces} if replaces else {})}
    _change(url, body, is_waiting=not no_wait)


@forget_app.command()
def forget(model: ModelName, url: UrlOption = None) -> None:
    """Forget an unloaded model of a running server. It is listed no more.

    One that was named with --known is known again after a restart.
    """
    _change(url, {"action": "forget", "model": model}, is_waiting=True)


def render(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for a terminal."""
    rows = [(each["id"], each["state"], each["requests"], _list_nodes(each)) for each in found["data"]]
    yield from align([("MODEL", "STATE", "REQUESTS", "LAYERS"), *rows])
    yield from (f"{each['id']} could not be loaded: {each['error']}" for each in found["data"] if each["error"])
    if (change := found["change"]) is None:
        return
    if change["state"] in UNDER_WAY:
        yield f"under way: {change['action']} {change['model']}, {change['state']} for {change['seconds']:.0f} s"
    elif change["state"] == "failed" and change["model"] not in {each["id"] for each in found["data"]}:
        yield f"{change['model']} could not be loaded" + (f": {change['error']}" if change["error"] else "")


def describe_progress(found: dict[str, Any], change: dict[str, Any]) -> str:
    """Return how far a change is, with each node that loads something; empty: the model is forgotten already."""
    model = change["model"] if change["state"] == "loading" else change["replaces"] or change["model"]
    known = next((each for each in found["data"] if each["id"] == model), None)
    if known is None:
        return ""
    if change["state"] == "draining":
        return f"{model}: {known['requests']} requests are still running"
    return f"{model}: {describe_loading(known) or 'starting'}"


def describe_loading(model: dict[str, Any]) -> str:
    """Return how far each node is that loads something of a model; empty: none does."""
    return ", ".join(_describe_node(node) for node in model["nodes"] if node["task"])


def _change(url: str | None, body: dict[str, Any], *, is_waiting: bool) -> None:
    """Ask a server for a change, and wait for its end.

    Raises:
        ParallaxError: if it refuses the change, or that fails.
    """
    client = Client(find_url(url), TIMEOUT_S)
    begun = client.change_models(body)
    if not is_waiting:
        print("begun; `parallax models served` shows how far it is")
        return
    shown = ""
    while (change := find_change(found := client.known_models(), begun))["state"] in UNDER_WAY:
        if (text := describe_progress(found, change)) != shown:
            print(text, file=sys.stderr, flush=True)
            shown = text
        time.sleep(LOOK_S)
    if change["state"] == "failed":
        raise ParallaxError(change["error"] or "the change has failed", "`parallax models served` shows what is loaded")
    print(f"{change['model']} is {RESULTS[change['action']]}")
    if change["replaces"]:
        print(f"{change['replaces']} is unloaded")


def find_change(found: dict[str, Any], begun: str) -> dict[str, Any]:
    """Return a change of an answer to ``GET /v1/cluster/models`` by its id.

    Raises:
        ParallaxError: if the server does not know it any more.
    """
    changes: list[dict[str, Any]] = [each for each in (found["change"], *found["earlier"]) if each is not None]
    for change in changes:
        if change["id"] == begun:
            return change
    message = "the server has restarted, and the outcome of the change is unknown"
    raise ParallaxError(message, "`parallax models served` shows what is loaded")


def _name(model: str) -> str:
    """Return what names a model to a server: a folder of this machine by its whole path."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _list_nodes(model: dict[str, Any]) -> str:
    return ", ".join(f"{each['layers'][0]}-{each['layers'][1]} on {each['node']}" for each in model["nodes"]) or "-"


def _describe_node(node: dict[str, Any]) -> str:
    share = f" {node['done'] / node['total']:.0%}" if node["total"] else ""
    return f"{node['node']} {node['task']}{share}"
