"""Show the nodes of a running server and their work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated
from urllib.parse import quote

import typer

from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_cluster.cli.status import TIMEOUT_S, Cluster
from parallax_cluster.placement.idle import name_some
from parallax_core.api import ParallaxError, format_bytes, name_machine
from parallax_core.api.cli import align, new_app

HIDDEN_COMMAND = "parallax join CODE, which `parallax nodes --show-code` shows"
"""Replaces the command to join: anyone who reads its code over a shoulder could join."""
NOTABLE = 1.2
"""How many times longer, or shorter, than predicted the steps of a node take if it is shown."""
LOOK_S = 0.5
"""Seconds between two looks at a node that is being drained."""

app = new_app("Show the nodes of a running server and their work.")

NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="As `parallax nodes` shows it, or the name of its machine.")
]


@app.callback(invoke_without_command=True)
def nodes(
    ctx: typer.Context,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    show_code: Annotated[bool, typer.Option("--show-code", help="Show the join code, which is a secret.")] = False,
    rebalance: Annotated[
        bool, typer.Option("--rebalance", help="Move layers now if it is worth it, also held ones.")
    ] = False,
) -> None:
    """Show the nodes that have joined a running server, the layers of each, and why others are idle.

    A key is taken from PARALLAX_API_KEY.
    """
    if ctx.invoked_subcommand is not None:
        return
    if rebalance:
        Client(find_url(url), TIMEOUT_S).change_cluster("/cluster/rebalance")
        return
    cluster = Client(find_url(url), TIMEOUT_S).cluster()
    if not show_code:
        hide_code(cluster)
    print(json.dumps({"nodes": cluster["nodes"], "plan": cluster["plan"]}) if as_json else "\n".join(render(cluster)))


@app.command()
def drain(node: NodeName, url: UrlOption = None) -> None:
    """Take a machine out of service: others take over its layers.

    The command returns once they have. No answer is lost; those on the machine pause until they go on elsewhere.
    Without room for its layers elsewhere, it goes on with them until another machine joins, and the command says so. A
    drained machine stays joined, and is drained after a restart of the server or of the machine, too, until `parallax
    nodes resume`.
    """
    client, machine = Client(find_url(url), TIMEOUT_S), name_machine(node)
    client.change_cluster(f"/nodes/{quote(node)}/drain")
    while used := list_used(cluster := client.cluster(), machine):
        if waits_for := cluster["plan"]["waits_for"]:
            message = f"{', '.join(used)} keeps its layers, since no room is left elsewhere: {waits_for}"
            raise ParallaxError(message, "let another machine join, or take it back: `parallax nodes resume`")
        time.sleep(LOOK_S)
    print(f"{machine} is drained: it has no layers, and gets none")


def list_used(cluster: Cluster, machine: str) -> list[str]:
    """Return the names of the nodes on a machine that have layers, or are to have some."""
    used = (node["node"] for node in cluster["nodes"] if node["state"] != "idle")
    return [name for name in used if name_machine(name) == machine]


@app.command()
def resume(node: NodeName, url: UrlOption = None) -> None:
    """Take a drained machine back into service.

    It gets layers again, where that is worth it.
    """
    Client(find_url(url), TIMEOUT_S).change_cluster(f"/nodes/{quote(node)}/resume")
    print(f"{name_machine(node)} may get layers again")


@app.command()
def remove(node: NodeName, url: UrlOption = None) -> None:
    """Remove a machine from the cluster for good.

    It is drained, and then its key admits it no more. No answer is lost; see `parallax nodes drain`. Its links end
    within a second. It joins again only with a new key of its own, or once `parallax keys allow` has let its key back.
    """
    client, machine = Client(find_url(url), TIMEOUT_S), name_machine(node)
    if machine in {name_machine(each["node"]) for each in client.cluster()["nodes"]}:
        drain(node, url)
    client.change_cluster(f"/nodes/{quote(node)}/remove")
    print(f"{machine} is removed, and its key with it; `parallax keys allow` lets it back")


def hide_code(cluster: Cluster) -> None:
    """Take the join code out of the command to join, if there is one."""
    if (plan := cluster["plan"]) is not None and plan["join_command"]:
        plan["join_command"] = HIDDEN_COMMAND


def render(cluster: Cluster) -> Iterator[str]:
    """Yield the lines for a terminal."""
    nodes = cluster["nodes"]
    if nodes:
        yield from align(
            [("NODE", "DEVICE", "MEMORY", "STATE", "MODEL", "REPLICA", "LAYERS"), *map(_render_node, nodes)]
        )
    else:
        yield "no node has joined"
    yield from (f"idle: {node['node']}: {node['idle_reason']}" for node in nodes if node["idle_reason"])
    yield from _render_relays(cluster)
    yield from _render_unreached(nodes)
    yield from _render_slowdowns(nodes)
    yield from _render_notes(nodes)
    if cluster["plan"] is not None:
        yield from _render_plan(cluster["plan"])
        yield from _render_absent(cluster["plan"], {name_machine(node["node"]) for node in nodes})


def _render_relays(cluster: Cluster) -> Iterator[str]:
    """Yield the links over relays: those that pipelines use, and the others that nodes have measured."""
    found = dict[tuple[str, str], str]()
    for node in cluster["nodes"]:
        for link in (node["profile"] or {}).get("links", ()):
            found[node["node"], link["peer"]] = link.get("relay")  # a server that is not new enough does not report it
    for replica in cluster["replicas"]:
        for stage, after in pairwise(replica["stages"]):
            found[stage["node"], after["node"]] = stage.get("relay")
    yield from (f"relayed: {one} reaches {other} over {relay}" for (one, other), relay in found.items() if relay)


def _render_unreached(nodes: list[Cluster]) -> Iterator[str]:
    for node in nodes:
        if others := node.get("unreached"):
            yield f"unreached: {node['node']} does not reach {name_some(others)}"


def _render_notes(nodes: list[Cluster]) -> Iterator[str]:
    """Yield labels, and versions that differ; a server that is not new enough reports neither."""
    for node in nodes:
        if labels := node.get("labels"):
            yield f"labels: {node['node']}: {', '.join(f'{key}={value}' for key, value in labels.items())}"
    for node in nodes:
        for name, expected in node.get("expected_versions", {}).items():
            yield f"versions: {node['node']} has {name} {node['versions'][name]}, and should have {expected}"


def _render_slowdowns(nodes: list[Cluster]) -> Iterator[str]:
    for node in nodes:
        factor = node.get("slowdown") or 1.0  # a server that is not new enough does not report it
        if not 1 / NOTABLE < factor < NOTABLE:
            yield f"measured: {node['node']}: its steps take {factor:.2g} times as long as predicted"


def _render_plan(plan: Cluster) -> Iterator[str]:
    if (found := plan["predicted"]) is not None:
        speed = f"{found['tokens_per_second']:.4g} tokens/s for {found['requests']} requests at once"
        yield f"predicted: {speed}, {found['token_seconds'] * 1e3:.3g} ms per token of one"
    for replica in plan["replicas"]:
        if (measured := replica["measured_token_seconds"]) is not None:
            yield f"measured: replica {replica['rank']}: {measured * 1e3:.3g} ms per step through its stages and links"
    if (move := plan.get("move")) is not None:  # of a server that is new enough to report it
        yield _render_move(move)
    if plan["waits_for"]:
        yield f"it waits: {plan['waits_for']}"
    if standbys := plan.get("standbys"):  # of a server that is new enough to report them
        yield f"standbys: {', '.join(standbys)}, for term {plan['term'] + 1}"
    if plan["join_command"]:
        yield f"to join: {plan['join_command']}"


def _render_absent(plan: Cluster, joined: set[str]) -> Iterator[str]:
    drained = plan.get("drained", ())  # of a server that is new enough to report them
    if absent := [each for each in drained if each not in joined]:
        yield f"drained, and not here: {', '.join(absent)}"


def _render_move(move: Cluster) -> str:
    loads = ", ".join(f"{format_bytes(size)} on {node}" for node, size in move["nodes"].items())
    time = f" in about {move['seconds']:.3g} s" if loads else ""
    ranks = ", ".join(map(str, move["replicas"]))
    return f"layers move: {loads or 'nothing'} to load{time}, replica {ranks}: {move['reason']}"


def _render_state(node: Cluster) -> str:
    """Return what a node does."""
    if not node.get("drained"):  # a server that is not new enough drains none
        return str(node["state"])
    return "drained" if node["state"] == "idle" else "draining"


def _render_node(node: Cluster) -> tuple[object, ...]:
    profile, layers = node["profile"], node["layers"]
    return (
        node["node"],
        (profile["device"] or "-") if profile else "-",
        format_bytes(profile["memory"]) if profile else "-",
        _render_state(node),
        node["model"] or "-",
        "-" if node["replica"] is None else node["replica"],
        f"{layers[0]}-{layers[1]}" if layers else "-",
    )
