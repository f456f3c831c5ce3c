"""Draws the state of a cluster, as the API describes it, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Json = dict[str, Any]
COLOURS = {"ready": "green", "starting": "yellow", "draining": "yellow", "failed": "red"}
BAR = 6
"""The width of a bar, in characters."""
YIELDING = frozenset({"Id", "Model", "Node", "Device", "Does"})
"""The columns that are cut where the terminal is narrow."""
LEAST = 7
"""The least width of the others, in characters."""


def render(cluster: Json, requests: Sequence[Json], rate: float | None) -> Group:
    """Return what to draw.

    Args:
        cluster: the answer of ``GET /v1/cluster``.
        requests: ``data`` of ``GET /v1/requests``.
        rate: the tokens computed per second; None: unknown.
    """
    parts: list[RenderableType] = [_draw_head(cluster, rate)]
    if cluster["plan"] and cluster["plan"]["waits_for"]:
        parts.append(Text(f"waits for {cluster['plan']['waits_for']}", "yellow"))
    parts += [_draw_replica(each) for each in cluster["replicas"]]
    if cluster["nodes"]:
        parts.append(_draw_nodes(cluster["nodes"]))
    if requests:
        parts.append(_draw_requests(requests))
    return Group(*parts)


def _draw_head(cluster: Json, rate: float | None) -> Text:
    running, waiting = (sum(each[name] for each in cluster["replicas"]) for name in ("running", "waiting"))
    status = cluster["status"]
    line = Text.assemble((cluster["model"] or "no model", "bold"), " ", (status, COLOURS.get(status, "")))
    if cluster["reason"]:
        line.append(f" ({cluster['reason']})")
    line.append(f"  {len(cluster['nodes'])} nodes  {running} running  {waiting} waiting")
    if rate is not None:
        line.append(f"  {rate:.0f} tokens/s")
    return line


def _draw_replica(replica: Json) -> Table:
    title = f"{replica['model']}, replica {replica['rank']}{', drained' if replica['drained'] else ''}"
    table = _make_table(title, "Stage", "Node", "Layers", "Device", "KV cache   ", "Step", "Queued")
    times = [each["step_seconds"]["median"] if each["step_seconds"] else 0.0 for each in replica["stages"]]
    for stage, step_s in zip(replica["stages"], times, strict=True):
        is_slowest = len(times) > 1 and step_s > 0 and step_s == max(times)
        layers = stage["layers"]
        table.add_row(
            str(stage["stage"]),
            _plain(stage["node"] or "waits for a node"),
            f"{layers[0]}-{layers[1] - 1}" if layers else "",
            _plain(stage["device"] or ""),
            _draw_bar(*_sum_pools(stage["pools"])),
            f"{step_s * 1e3:.1f} ms" if step_s else "",
            str(stage["queued"]),
            style="yellow" if is_slowest else "",
        )
    return table


def _draw_nodes(nodes: Sequence[Json]) -> Table:
    table = _make_table("Nodes", "Node", "State", "Does", "Memory", "Slowest link")
    for node in nodes:
        profile, layers = node["profile"] or {}, node["layers"]
        trips = [link["round_trip_seconds"] for link in profile.get("links", ())]
        does = (
            f"{node['model']}, layers {layers[0]}-{layers[1] - 1}" if layers and node["model"] else node["idle_reason"]
        )
        table.add_row(
            _plain(node["node"]),
            "drained" if node["drained"] else node["state"],
            _plain(does or ""),
            f"{profile['memory'] / 1e9:.1f} GB" if profile else "",
            f"{max(trips) * 1e3:.1f} ms" if trips else "",
        )
    return table


def _draw_requests(requests: Sequence[Json]) -> Table:
    table = _make_table("Requests", "Id", "Model", "State", "Prompt", "Output", "First token", "Time", "Mostly")
    for each in requests:
        first_s = each["first_token_seconds"]
        table.add_row(
            _plain(each["id"]),
            _plain(each["model"]),
            each["reason"] or each["state"],
            str(each["prompt_tokens"]),
            str(each["output_tokens"]) if each["reason"] else "",
            "" if first_s is None else f"{first_s * 1e3:.0f} ms",
            f"{each['seconds']:.1f} s",
            find_longest(each["parts"]),
        )
    return table


def find_longest(parts: Sequence[Json]) -> str:
    """Return the stage, the hop or the wait that took most of a request; empty: nothing is known."""
    kinds = ("queue", "recovery", "stage", "hop", "detokenize")
    known = [each for each in parts if each["name"].split()[0] in kinds]
    return str(max(known, key=lambda each: each["seconds"])["name"]) if known else ""


def _make_table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        width = 0 if column in YIELDING else max(len(column), LEAST)
        table.add_column(column, header_style="dim", no_wrap=True, overflow="ellipsis", min_width=width)
    return table


def _plain(text: str) -> Text:
    """Return a text of a node or a client as it is: markup in it draws nothing."""
    return Text("".join(each if each.isprintable() else "?" for each in text))


def _sum_pools(pools: Sequence[Json]) -> tuple[int, int]:
    return sum(each["used"] for each in pools), sum(each["total"] for each in pools)


def _draw_bar(used: int, total: int) -> str:
    filled = round(BAR * used / total) if total else 0
    return f"{'█' * filled}{'░' * (BAR - filled)} {used / total:4.0%}" if total else ""
