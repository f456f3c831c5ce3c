"""Changes the profile of a cluster as ``--what-if`` says: other nodes, memory, links."""

from __future__ import annotations

import dataclasses
import re

from parallax_cluster.placement.devices import FREE_SHARE, GB, find_device
from parallax_cluster.placement.link_kinds import find_kind
from parallax_cluster.placement.nodes_file import DEVICES_HINT, MOST_NODES, make_link
from parallax_core.api import ClusterProfile, LinkProfile, NodeProfile, UsageError

ADDED = re.compile(r"\+(?:(?P<count>\d+)x *)?(?P<device>[^@/]+?)(?:@(?P<link>.+))?")
LINK = re.compile(r"(?:(?P<rtt>\d{1,9}(?:\.\d+)?)ms)?(?:/?(?P<mbit>\d{1,12})mbit)?")
HINT = (
    "write +2xRTX4090@20ms/100mbit or +M4Max@wifi to add nodes, -NAME to take one away, NAME=64gb for other memory,"
    " ONE~OTHER@10gbe for another link; a comma joins several"
)


def change_cluster(cluster: ClusterProfile, changes: str, most_nodes: int = MOST_NODES) -> ClusterProfile:
    """Return the cluster with some changes.

    Args:
        cluster: without the changes.
        changes: joined by commas, such as ``+2xRTX4090@20ms/100mbit``: two nodes with these devices, 20 ms and 100
            Mbit/s from all others and each other (or ``@wifi``; by default as far as nodes that no link names);
            ``-NAME``: without this node; ``NAME=64gb``: a node with other memory; ``ONE~OTHER@10gbe``: another link of
            two nodes or sites.
        most_nodes: nodes that there may be then.

    Raises:
        UsageError: if one is not of these forms, names an unknown node or device, or adds too many.
    """
    for change in changes.split(","):
        cluster = _change(cluster, change.strip())
        if len(cluster.nodes) > most_nodes:
            raise UsageError(f"{change!r} makes {len(cluster.nodes)} nodes", f"{most_nodes} at most are planned here")
    return cluster


def _change(cluster: ClusterProfile, change: str) -> ClusterProfile:
    if change.startswith("-"):
        return _remove_node(cluster, change[1:])
    if found := ADDED.fullmatch(change):
        return _add_nodes(cluster, int(found["count"] or 1), found["device"], found["link"] or "", change)
    name, is_memory, size = change.rpartition("=")
    if is_memory and (memory := re.fullmatch(r"(\d{1,6}(?:\.\d+)?) *gb", size.lower())):
        return _change_memory(cluster, name, float(memory[1]))
    between, _, link = change.rpartition("@")
    if (ends := between.split("~")) and len(ends) == len(("one", "other")):
        return _change_link(cluster, (ends[0], ends[1]), link, change)
    raise UsageError(f"{change!r} is not a change of a cluster", HINT)


def _add_nodes(cluster: ClusterProfile, count: int, named: str, link: str, change: str) -> ClusterProfile:
    if not 0 < count <= MOST_NODES:
        raise UsageError(f"{change!r} adds {count} nodes", f"add 1 to {MOST_NODES}")
    device = find_device(named)
    if device is None:
        message = f"{named!r} in {change!r} is no device with known figures"
        raise UsageError(message, f"{DEVICES_HINT}; or add the node to the file")
    site = f"what-if {len(cluster.nodes)}"
    names = (f"{device.name} {len(cluster.nodes) + rank + 1}" for rank in range(count))
    nodes = tuple(NodeProfile(name=name, device=device, site=site) for name in names)
    sites = {node.site for node in (*cluster.nodes, *nodes)} | ({cluster.head} if cluster.head else set())
    links = tuple(_read_link(cluster, (site, other), link, change) for other in sorted(sites))
    return dataclasses.replace(cluster, nodes=cluster.nodes + nodes, links=cluster.links + links)


def _read_link(cluster: ClusterProfile, ends: tuple[str, str], text: str, change: str) -> LinkProfile:
    """Return a link from a kind or its figures; those that are left out are of nodes that no link names."""
    default = cluster.default_link
    rtt_ms, mbit_s = find_kind(text) or (default.round_trip_s * 1e3, default.bandwidth * 8 / 1e6)
    if not find_kind(text):
        found = LINK.fullmatch(text)
        if found is None:
            raise UsageError(f"{change!r} is not a change of a cluster: {text!r} is no link", HINT)
        rtt_ms, mbit_s = float(found["rtt"] or rtt_ms), float(found["mbit"] or mbit_s)
    return make_link(ends, rtt_ms, max(mbit_s, 1e-3))


def _change_memory(cluster: ClusterProfile, name: str, size_gb: float) -> ClusterProfile:
    _check_node(cluster, name)
    nodes = (
        dataclasses.replace(node, device=dataclasses.replace(node.device, memory=int(size_gb * FREE_SHARE * GB)))
        if node.name == name
        else node
        for node in cluster.nodes
    )
    return dataclasses.replace(cluster, nodes=tuple(nodes))


def _change_link(cluster: ClusterProfile, ends: tuple[str, str], text: str, change: str) -> ClusterProfile:
    known = {name for node in cluster.nodes for name in (node.name, node.site)} | {cluster.head}
    for end in ends:
        if not end or end not in known:
            raise UsageError(f"{change!r}: there is no node or site {end!r}", HINT)
    if ends[0] == ends[1] not in {node.site for node in cluster.nodes}:
        raise UsageError(f"{change!r}: {ends[0]!r} has no link with itself", HINT)
    others = (link for link in cluster.links if frozenset(link.ends) != frozenset(ends))
    return dataclasses.replace(cluster, links=(*others, _read_link(cluster, ends, text, change)))


def _remove_node(cluster: ClusterProfile, name: str) -> ClusterProfile:
    _check_node(cluster, name)
    left = tuple(node for node in cluster.nodes if node.name != name)
    head = "" if cluster.head == name else cluster.head
    return dataclasses.replace(cluster, nodes=left, head=head)


def _check_node(cluster: ClusterProfile, name: str) -> None:
    if all(node.name != name for node in cluster.nodes):
        message = f"there is no node {name!r} to take away or change"
        raise UsageError(message, f"there are {', '.join(node.name for node in cluster.nodes[:20])}")
