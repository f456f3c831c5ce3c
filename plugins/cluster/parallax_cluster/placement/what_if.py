"""Changes the profile of a cluster as ``--what-if`` says: nodes to add or to take away."""

from __future__ import annotations

import dataclasses
import re

from parallax_cluster.placement.devices import DEVICES, find_device
from parallax_cluster.placement.nodes_file import make_link
from parallax_core.api import ClusterProfile, NodeProfile, UsageError

ADDED = re.compile(
    r"\+(?:(?P<count>\d{1,4})x)?(?P<device>[\w.-]+)(?:@(?P<rtt>\d{1,9}(?:\.\d+)?)ms)?(?:/(?P<mbit>\d{1,12})mbit)?"
)
HINT = "write +2xRTX4090@20ms/100mbit to add nodes, or -NAME to take one away"


def change_cluster(cluster: ClusterProfile, change: str) -> ClusterProfile:
    """Return the cluster with nodes added or one taken away.

    Args:
        cluster: without the change.
        change: such as ``+2xRTX4090@20ms/100mbit``: two nodes with these devices, 20 ms and 100 Mbit/s from all others
            and each other, by default as far as nodes that no link names; or ``-NAME``, for the node of that name.

    Raises:
        UsageError: if ``change`` is not of that form, or names an unknown node or device.
    """
    if change.startswith("-"):
        return _remove_node(cluster, change[1:])
    found = ADDED.fullmatch(change)
    if found is None:
        message = f"{change!r} is not a change of a cluster"
        raise UsageError(message, HINT)
    device = find_device(found["device"])
    if device is None:
        message = f"{found['device']!r} in {change!r} is no device with known figures"
        raise UsageError(message, f"choose one of {', '.join(DEVICES)}, or add the node to the file")
    site = f"what-if {len(cluster.nodes)}"
    names = (f"{device.name} {len(cluster.nodes) + rank + 1}" for rank in range(int(found["count"] or 1)))
    nodes = tuple(NodeProfile(name=name, device=device, site=site) for name in names)
    default = cluster.default_link
    rtt_ms = float(found["rtt"]) if found["rtt"] else default.round_trip_s * 1e3
    mbit_s = float(found["mbit"]) if found["mbit"] else default.bandwidth * 8 / 1e6
    sites = {node.site for node in (*cluster.nodes, *nodes)} | ({cluster.head} if cluster.head else set())
    links = tuple(make_link((site, other), rtt_ms, max(mbit_s, 1e-3)) for other in sorted(sites))
    return dataclasses.replace(cluster, nodes=cluster.nodes + nodes, links=cluster.links + links)


def _remove_node(cluster: ClusterProfile, name: str) -> ClusterProfile:
    left = tuple(node for node in cluster.nodes if node.name != name)
    if len(left) == len(cluster.nodes):
        message = f"there is no node {name!r} to take away"
        raise UsageError(message, f"there are {', '.join(node.name for node in left[:20])}")
    head = "" if cluster.head == name else cluster.head
    return dataclasses.replace(cluster, nodes=left, head=head)
