"""Reads the profile of a cluster from a nodes file of `parallax cluster plan --nodes`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parallax_cluster.placement.devices import DEVICES, find_device
from parallax_core.api import ClusterProfile, DeviceProfile, LayerRange, LinkProfile, NodeProfile, UsageError

AboveZero = Annotated[float, Meta(gt=0, le=1e12)]
PerSecond = Annotated[float, Meta(ge=1e-9, le=1e12)]
"""With less, times would be infinite."""
ZeroOrMore = Annotated[float, Meta(ge=0, le=1e9)]
PartOfOne = Annotated[float, Meta(ge=1e-9, le=1)]
NodeName = Annotated[str, Meta(min_length=1)]
HINT = "docs/explanation/placement.md shows a nodes file"


class NodeEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table ``[[nodes]]``: a node, or several alike."""

    name: NodeName
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """If more than 1, the nodes are called ``NAME-1``, ``NAME-2`` and so on."""
    site: str = ""
    device: str = ""
    """A device whose typical figures count where none is given below."""
    memory_gb: AboveZero | None = None
    tflops: PerSecond | None = None
    bandwidth_gb_s: PerSecond | None = None
    flops_efficiency: PartOfOne | None = None
    bandwidth_efficiency: PartOfOne | None = None
    step_ms: ZeroOrMore | None = None
    layer_ms: ZeroOrMore | None = None
    cached_layers: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]] | None = None
    disk_mb_s: PerSecond = 1000.0
    download_mb_s: PerSecond = 50.0
    leases: bool = False
    """Whether several pipelines may use it: its backend has leases, as those for MLX and PyTorch."""


class LinkEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table ``[[links]]``."""

    ends: tuple[str, str]
    rtt_ms: ZeroOrMore
    mbit_s: PerSecond = 1000.0


class NetworkEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The table ``[network]``: the connection of nodes that no link names, and where the head is."""

    rtt_ms: ZeroOrMore = 1.0
    mbit_s: PerSecond = 1000.0
    head: str = ""
    unreachable: list[tuple[str, str]] = []
    """Pairs of nodes or sites: the first cannot connect to the second."""


class NodesFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The contents of a nodes file."""

    nodes: Annotated[list[NodeEntry], Meta(min_length=1)]
    links: list[LinkEntry] = []
    network: NetworkEntry = msgspec.field(default_factory=NetworkEntry)


FIGURES = {
    "memory_gb": ("memory", 1e9),
    "tflops": ("flops", 1e12),
    "bandwidth_gb_s": ("bandwidth", 1e9),
    "flops_efficiency": ("flops_efficiency", 1.0),
    "bandwidth_efficiency": ("bandwidth_efficiency", 1.0),
    "step_ms": ("step_s", 1e-3),
    "layer_ms": ("layer_s", 1e-3),
}
"""The fields of `DeviceProfile` by those of a node in the file, and the factors between their units."""
NEEDED = ("memory_gb", "tflops", "bandwidth_gb_s")


def read_cluster(contents: object) -> ClusterProfile:
    """Return the cluster that a nodes file describes.

    Args:
        contents: of the file, as parsed from TOML or JSON.

    Raises:
        UsageError: if a field is missing, unknown or of a wrong type or value; the message names it.
    """
    try:
        file = msgspec.convert(contents, NodesFile)
    except msgspec.ValidationError as error:
        raise UsageError(_explain(str(error)), HINT) from error
    nodes = tuple(node for rank, entry in enumerate(file.nodes) for node in _make_nodes(entry, f"nodes[{rank}]"))
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        message = f"nodes: {twice!r} is named more than once"
        raise UsageError(message, "give each node a name of its own")
    known = {*names, *(node.site for node in nodes if node.site)}
    for rank, link in enumerate(file.links):
        _check_known(link.ends, known, f"links[{rank}].ends")
    _check_known((file.network.head,) if file.network.head else (), known, "network.head")
    for rank, pair in enumerate(file.network.unreachable):
        _check_known(pair, known, f"network.unreachable[{rank}]")
    return ClusterProfile(
        nodes=nodes,
        links=tuple(make_link(link.ends, link.rtt_ms, link.mbit_s) for link in file.links),
        default_link=make_link(("", ""), file.network.rtt_ms, file.network.mbit_s),
        head=file.network.head,
        unreachable=frozenset(_list_unreachable(nodes, file.network.unreachable)),
    )


def describe_node(node: NodeProfile) -> dict[str, Any]:
    """Return a node as a table ``[[nodes]]``, all of whose figures are written out."""
    figures = {name: float(f"{getattr(node.device, field) / unit:.6g}") for name, (field, unit) in FIGURES.items()}
    cached = node.cached_layers
    return {
        "name": node.name,
        **({"site": node.site} if node.site else {}),
        "device": node.device.name,
        **figures,
        **({"cached_layers": [cached.start, cached.stop]} if cached else {}),
        "disk_mb_s": float(f"{node.disk_bandwidth / 1e6:.6g}"),
        **({"leases": True} if node.leases else {}),
    }


def make_link(ends: tuple[str, str], rtt_ms: float, mbit_s: float) -> LinkProfile:
    """Return a link from the units of the file."""
    return LinkProfile(ends=ends, round_trip_s=rtt_ms / 1e3, bandwidth=mbit_s * 1e6 / 8)


def _list_unreachable(nodes: Sequence[NodeProfile], pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of nodes for pairs of nodes or sites."""
    for one, other in pairs:
        members = [[node.name for node in nodes if end in {node.name, node.site}] for end in (one, other)]
        yield from ((first, second) for first, second in product(*members) if first != second)


def _make_nodes(entry: NodeEntry, where: str) -> Iterator[NodeProfile]:
    device = _make_device(entry, where)
    cached = LayerRange(*entry.cached_layers) if entry.cached_layers else None
    for number in range(entry.count):
        yield NodeProfile(
            name=entry.name if entry.count == 1 else f"{entry.name}-{number + 1}",
            device=device,
            site=entry.site,
            cached_layers=cached,
            disk_bandwidth=entry.disk_mb_s * 1e6,
            download_bandwidth=entry.download_mb_s * 1e6,
            leases=entry.leases,
        )


def _make_device(entry: NodeEntry, where: str) -> DeviceProfile:
    known = find_device(entry.device) if entry.device else None
    if known is None and (missing := [name for name in NEEDED if getattr(entry, name) is None]):
        device = f", and {entry.device!r} is no device with known figures" if entry.device else ""
        message = f"{where} ({entry.name}): {missing[0]} is missing{device}"
        raise UsageError(message, f"give {', '.join(NEEDED)}, or a device of {', '.join(DEVICES)}")
    given = {
        field: getattr(entry, name) * unit
        for name, (field, unit) in FIGURES.items()
        if getattr(entry, name) is not None
    }
    if "memory" in given:
        given["memory"] = int(given["memory"])
    if known is None:
        return DeviceProfile(name=entry.device, **given)
    return dataclasses.replace(known, **given)


def _check_known(names: tuple[str, ...], known: set[str], where: str) -> None:
    for name in names:
        if name not in known:
            message = f"{where}: there is no node or site {name!r}"
            raise UsageError(message, f"there are {', '.join(sorted(known)[:20])}")


def _explain(reason: str) -> str:
    """Return a validation error with the field first: ``nodes[0].memory_gb: Expected ...``."""
    found = re.fullmatch(r"(.*) - at `\$\.?(.*)`", reason, re.DOTALL)
    return f"{found.group(2)}: {found.group(1)}" if found and found.group(2) else reason
