"""Turns the reports of nodes into the profile of their cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import msgspec

from parallax_cluster.node.coordinator.coordinator import UsableNodes
from parallax_cluster.reports import ReportedCluster
from parallax_cluster.wire.profile import DeviceReport, NodeReport
from parallax_core.api import HEAD, ClusterProfile, LinkProfile
from parallax_core.node.membership.joined_node import JoinedNode

PATIENCE_S = 60.0
"""Seconds for which a node may measure itself, before its speed is assumed."""
ASSUMED = DeviceReport(memory=0, flops=1e11, bandwidth=1e10, step_s=1e-3, layer_s=1e-4)
"""The figures of a device that does not say what it is: those of a slow CPU."""
BESIDE = 2e-4, 1e9
"""The round trip in seconds and the bytes per second between two processes of one machine."""


@dataclass(slots=True)
class SeenNode:
    """A node, and what it said first: once it has loaded layers, less of its memory is free."""

    node: JoinedNode
    since: float
    memory: int = 0
    heard: NodeReport | None = None
    """The last report, as the node sent it."""
    report: NodeReport | None = None
    """The same with `memory`."""

    def hear(self, report: NodeReport) -> NodeReport:
        """Return a report with the memory that was free at first; the same object if the report is the same."""
        if self.report is None or self.heard is not report:
            self.heard, self.memory = report, max(self.memory, report.device.memory)
            device = msgspec.structs.replace(report.device, memory=self.memory)
            self.report = msgspec.structs.replace(report, device=device)
        return self.report


class NodeProfiles:
    """The profiles of the nodes of a coordinator."""

    def __init__(self, own: str, model: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """Describe the nodes that may run ``model``, by its full name; ``own`` is the one on the head's machine."""
        self._own = own
        self._clock = clock
        self._seen: dict[str, SeenNode] = {}
        self._recalled: Mapping[str, int] = {}
        self._reported = ReportedCluster(HEAD, model)
        self._latest = self._reported.update({}), ClusterProfile(nodes=())
        """The cluster as it was reported last, and with the link to the node on the head's machine."""

    @property
    def memories(self) -> dict[str, int]:
        """The bytes that each node had free before it loaded layers."""
        return {name: seen.memory for name, seen in self._seen.items() if seen.memory}

    def recall(self, memories: Mapping[str, int]) -> None:
        """Take nodes that join with layers to have had these bytes free before they loaded them."""
        self._recalled = memories

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profiles of nodes that have reported, and why the others cannot be used."""
        now = self._clock()
        found, reports, others = dict[str, SeenNode](), dict[str, NodeReport](), dict[str, str]()
        for node in nodes:
            seen = self._seen.get(node.name)
            found[node.name] = seen = seen if seen and seen.node is node else self._see(node, now)
            report = _find_report(seen, now)
            if report is None:
                others[node.name] = "it has not reported its device yet"
            else:
                reports[node.name] = seen.hear(report)
        self._seen, reported = found, self._reported.update(reports)
        if self._latest[0] is not reported:
            self._latest = reported, self._add_own(reported) if self._own in reports else reported
        return UsableNodes(self._latest[1], others)

    def _add_own(self, cluster: ClusterProfile) -> ClusterProfile:
        beside = LinkProfile(ends=(self._own, HEAD), round_trip_s=BESIDE[0], bandwidth=BESIDE[1])
        return replace(cluster, links=(*cluster.links, beside))

    def _see(self, node: JoinedNode, now: float) -> SeenNode:
        return SeenNode(node, now, self._recalled.get(node.name, 0) if node.join.model else 0)


def _find_report(seen: SeenNode, now: float) -> NodeReport | None:
    """Return a node's report, an assumed one after `PATIENCE_S`, or None while it is awaited."""
    node = seen.node
    report: NodeReport | None = node.report
    if report is not None:
        return report
    if now - seen.since < PATIENCE_S or not node.join.memory:
        return None
    return NodeReport(backend="", device=msgspec.structs.replace(ASSUMED, memory=node.join.memory))
