"""Reads the profile of a cluster from a nodes file of `parallax cluster plan --nodes`."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parallax_cluster.placement.device_table import TYPICAL, Efficiency
from parallax_cluster.placement.devices import find_device
from parallax_cluster.placement.link_kinds import KINDS, find_kind
from parallax_core.api import ClusterProfile, DeviceProfile, LayerRange, LinkProfile, NodeProfile, UsageError

Gigabytes = Annotated[float, Meta(gt=0, le=1e6)]
PerSecond = Annotated[float, Meta(ge=1e-9, le=1e7)]
"""With less, times would be infinite."""
ZeroOrMore = Annotated[float, Meta(ge=0, le=1e9)]
PartOfOne = Annotated[float, Meta(ge=1e-9, le=1)]
NodeName = Annotated[str, Meta(min_length=1)]
HINT = "`parallax cluster plan --example` prints a nodes file"
DEVICES_HINT = "`parallax cluster plan --devices` lists them"
MOST_NODES = 100_000
MEASURED = Efficiency(flops_efficiency=1.0, bandwidth_efficiency=1.0, step_s=0.0, layer_s=0.0)
"""If figures were measured with layers."""


class NodeEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table ``[[nodes]]``: a node, or several alike."""

    name: NodeName
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """If more than 1, the nodes are called ``NAME-1``, ``NAME-2`` and so on."""
    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    """The devices of each machine. If more than 1, each is a node: ``NAME-gpu0``, ``NAME-gpu1`` and so on."""
    gpu_link: str = "pcie"
    """The kind of link between them."""
    site: str = ""
    device: str = ""
    """A device whose typical figures count where none is given below."""
    measured: bool = False
    """Whether the figures were measured with layers; else they are those of a data sheet, which layers do not reach."""
    memory_gb: Gigabytes | None = None
    tflops: PerSecond | None = None
    bandwidth_gb_s: PerSecond | None = None
    flops_efficiency: PartOfOne | None = None
    bandwidth_efficiency: PartOfOne | None = None
    step_ms: ZeroOrMore | None = None
    layer_ms: ZeroOrMore | None = None
    expert_layer_ms: ZeroOrMore | None = None
    forms: list[tuple[PerSecond, PerSecond, PerSecond]] = []
    """What was measured of weights in several forms: the bytes of each, TFLOPS and GB/s."""
    cached_layers: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]] | None = None
    disk_mb_s: PerSecond = 1000.0
    download_mb_s: PerSecond = 50.0
    leases: bool = False
    """Whether several pipelines may use it: its backend has leases, as those for MLX and PyTorch."""


class LinkEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table ``[[links]]``."""

    ends: tuple[str, str]
    kind: str = ""
    """A kind whose typical figures count where none is given below."""
    rtt_ms: ZeroOrMore | None = None
    mbit_s: PerSecond | None = None


class NetworkEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The table ``[network]``: the connection of nodes that no link names, and where the head is."""

    kind: str = ""
    rtt_ms: ZeroOrMore | None = None
    mbit_s: PerSecond | None = None
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
    "expert_layer_ms": ("expert_layer_s", 1e-3),
}
"""The fields of `DeviceProfile` by those of a node in the file, and the factors between their units."""
FORM_UNITS = 1.0, 1e12, 1e9
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
        raise UsageError(name_field(str(error)), HINT) from error
    if (number := sum(entry.count * entry.gpus for entry in file.nodes)) > MOST_NODES:
        raise UsageError(f"nodes: {number} nodes are too many", f"name {MOST_NODES} at most")
    nodes = tuple(node for rank, entry in enumerate(file.nodes) for node in _make_nodes(entry, f"nodes[{rank}]"))
    names = Counter(node.name for node in nodes)
    if len(names) < len(nodes):
        twice = next(name for name, times in names.items() if times > 1)
        message = f"nodes: {twice!r} is named more than once"
        raise UsageError(message, "give each node a name of its own")
    known = {*names, *(node.site for node in nodes if node.site)}
    _check_links(file.links, known, {node.site for node in nodes})
    _check_known((file.network.head,) if file.network.head else (), known, "network.head")
    for rank, pair in enumerate(file.network.unreachable):
        _check_known(pair, known, f"network.unreachable[{rank}]")
    return ClusterProfile(
        nodes=nodes,
        links=(
            *(_read_link(link.ends, link, f"links[{rank}]") for rank, link in enumerate(file.links)),
            *(link for rank, entry in enumerate(file.nodes) for link in _join_devices(entry, f"nodes[{rank}]")),
        ),
        default_link=_read_link(("", ""), file.network, "network", rtt_ms=1.0),
        head=file.network.head,
        unreachable=frozenset(_list_unreachable(nodes, file.network.unreachable)),
    )


def describe_node(node: NodeProfile) -> dict[str, Any]:
    """Return a node as a table ``[[nodes]]``, all of whose figures are written out."""
    figures = {name: _round(getattr(node.device, field) / unit) for name, (field, unit) in FIGURES.items()}
    forms = [tuple(zip(form, FORM_UNITS, strict=True)) for form in node.device.forms]
    cached = node.cached_layers
    return {
        "name": node.name,
        **({"site": node.site} if node.site else {}),
        "device": node.device.name,
        **figures,
        **({"forms": [[_round(part / unit) for part, unit in parts] for parts in forms]} if forms else {}),
        **({"cached_layers": [cached.start, cached.stop]} if cached else {}),
        "disk_mb_s": _round(node.disk_bandwidth / 1e6),
        **({"leases": True} if node.leases else {}),
        **({"measured": True} if node.device.is_measured else {}),
    }


def _round(figure: float) -> float:
    return float(f"{figure:.6g}")


def make_link(ends: tuple[str, str], rtt_ms: float, mbit_s: float) -> LinkProfile:
    """Return a link from the units of the file."""
    return LinkProfile(ends=ends, round_trip_s=rtt_ms / 1e3, bandwidth=mbit_s * 1e6 / 8)


def _list_unreachable(nodes: Sequence[NodeProfile], pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of nodes for pairs of nodes or sites."""
    for one, other in pairs:
        members = [[node.name for node in nodes if end in {node.name, node.site}] for end in (one, other)]
        yield from ((first, second) for first, second in product(*members) if first != second)


def _check_links(links: Sequence[LinkEntry], known: set[str], sites: set[str]) -> None:
    """Check that links are between nodes or sites that there are, and that none is given twice."""
    given = dict[frozenset[str], int]()
    for rank, link in enumerate(links):
        where = f"links[{rank}].ends"
        _check_known(link.ends, known, where)
        if link.ends[0] == link.ends[1] not in sites:
            raise UsageError(
                f"{where}: {link.ends[0]!r} has no link with itself", "name two nodes, two sites, or a site twice"
            )
        first = given.setdefault(frozenset(link.ends), rank)
        if first != rank:
            raise UsageError(
                f"{where}: links[{first}] is between the same ends", "a link is the same in both directions"
            )


def _read_link(
    ends: tuple[str, str], entry: LinkEntry | NetworkEntry, where: str, rtt_ms: float | None = None
) -> LinkProfile:
    """Return a link of the file, with the figures of its kind where none is given."""
    kind = _read_kind(entry.kind, f"{where}.kind") if entry.kind else (rtt_ms, 1000.0)
    rtt_ms = kind[0] if entry.rtt_ms is None else entry.rtt_ms
    if rtt_ms is None:
        raise UsageError(f"{where}: rtt_ms is missing", f"give rtt_ms and mbit_s, or a kind: {', '.join(KINDS)}")
    return make_link(ends, rtt_ms, kind[1] if entry.mbit_s is None else entry.mbit_s)


def _read_kind(kind: str, where: str) -> tuple[float, float]:
    if (found := find_kind(kind)) is None:
        raise UsageError(f"{where}: {kind!r} is no kind of link that is known", f"choose one of {', '.join(KINDS)}")
    return found


def _name_machines(entry: NodeEntry) -> Iterator[list[str]]:
    """Yield the names of the nodes of each machine."""
    for number in range(entry.count):
        name = entry.name if entry.count == 1 else f"{entry.name}-{number + 1}"
        yield [name] if entry.gpus == 1 else [f"{name}-gpu{gpu}" for gpu in range(entry.gpus)]


def _join_devices(entry: NodeEntry, where: str) -> Iterator[LinkProfile]:
    """Yield the links between the devices of each machine."""
    if entry.gpus > 1:
        rtt_ms, mbit_s = _read_kind(entry.gpu_link, f"{where}.gpu_link")
        for names in _name_machines(entry):
            yield from (make_link(ends, rtt_ms, mbit_s) for ends in combinations(names, 2))


def _make_nodes(entry: NodeEntry, where: str) -> Iterator[NodeProfile]:
    device, cached = _make_device(entry, where), None
    if entry.cached_layers:
        if entry.cached_layers[0] >= entry.cached_layers[1]:
            raise UsageError(f"{where}.cached_layers: {list(entry.cached_layers)} is empty", "write [FIRST, LAST + 1]")
        cached = LayerRange(*entry.cached_layers)
    for name in chain.from_iterable(_name_machines(entry)):
        yield NodeProfile(
            name=name,
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
        raise UsageError(message, f"give {', '.join(NEEDED)}, or a known device; {DEVICES_HINT}")
    given = {
        field: getattr(entry, name) * unit
        for name, (field, unit) in FIGURES.items()
        if getattr(entry, name) is not None
    }
    if "memory" in given:
        given["memory"] = int(given["memory"])
    if known is None:
        known = DeviceProfile(memory=0, flops=0.0, bandwidth=0.0, name=entry.device, **TYPICAL._asdict())
    forms = tuple((each, tflops * 1e12, gb_s * 1e9) for each, tflops, gb_s in entry.forms)
    reached = MEASURED._asdict() if entry.measured else {}
    known = dataclasses.replace(known, name=entry.device, is_measured=entry.measured, forms=forms)
    return dataclasses.replace(known, **reached | given)


def _check_known(names: tuple[str, ...], known: set[str], where: str) -> None:
    for name in names:
        if name not in known:
            message = f"{where}: there is no node or site {name!r}"
            raise UsageError(message, f"there are {', '.join(sorted(known)[:20])}")


def name_field(reason: str) -> str:
    """Return a validation error with the field first: ``nodes[0].memory_gb: Expected ...``."""
    found = re.fullmatch(r"(.*) - at `\$\.?(.*)`", reason, re.DOTALL)
    return f"{found.group(2)}: {found.group(1)}" if found and found.group(2) else reason
