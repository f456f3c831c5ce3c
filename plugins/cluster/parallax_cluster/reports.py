"""Turns what a node says of itself into the profile that placement uses, without believing everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from parallax_cluster.placement.devices import find_device
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport
from parallax_core.api import ClusterProfile, DeviceProfile, LayerRange, LinkProfile, NodeProfile

SLACK = 1.5
"""How much faster than its data sheet a device may say it is: clocks and variants of a product differ."""


def describe_device(profile: DeviceProfile) -> DeviceReport:
    """Return the report of a device."""
    return DeviceReport(**{name: getattr(profile, name) for name in DeviceReport.__struct_fields__})


def make_node(name: str, report: NodeReport, *, site: str = "", model: str = "") -> NodeProfile:
    """Return the profile of a node.

    A device of a known product is not believed to be much faster than its data sheet says.

    Args:
        name: of the node; it is the cluster that names its nodes, not their reports.
        report: from the node, after `check_report`.
        site: the network it is in.
        model: the full name of the model to place, for its cached layers.
    """
    device = DeviceProfile(**msgspec.structs.asdict(report.device))
    stored = next((each for each in report.stored if each.model == model), None)
    return NodeProfile(
        name=name,
        device=limit_device(device),
        site=site,
        cached_layers=LayerRange(stored.start, stored.stop) if stored else None,
        disk_bandwidth=report.disk_bandwidth,
        disk_free=report.disk_free,
        leases=report.leases,
        labels=report.labels,
        max_context=report.max_context,
    )


def limit_device(device: DeviceProfile) -> DeviceProfile:
    """Return a profile that is at most `SLACK` times as fast as the data sheet of its product, if that is known."""
    known = find_device(device.name)
    if known is None:
        return device
    most_flops, most_bandwidth = SLACK * known.flops, SLACK * known.bandwidth
    return replace(
        device,
        flops=min(device.flops, most_flops),
        bandwidth=min(device.bandwidth, most_bandwidth),
        forms=tuple((each, min(flops, most_flops), min(read, most_bandwidth)) for each, flops, read in device.forms),
    )


def make_link(node: str, report: LinkReport) -> LinkProfile:
    """Return the link of a node from its report."""
    return LinkProfile(ends=(node, report.peer), round_trip_s=report.round_trip_s, bandwidth=report.bandwidth)


@dataclass(frozen=True, slots=True)
class ReadReport:
    """A report of a node, and what was made of it."""

    report: NodeReport
    profile: NodeProfile
    links: tuple[LinkProfile, ...]


class ReportedCluster:
    """Makes the profile of a cluster again whenever its nodes have reported; it keeps what has not changed."""

    def __init__(self, head: str, model: str = "") -> None:
        """Describe the cluster of a head, which sends no report.

        ``model`` is the full name of the model to place, for the layers that nodes have stored.
        """
        self._model = model
        self._read: dict[str, ReadReport] = {}
        self._latest = ClusterProfile(nodes=(), head=head)

    def update(self, reports: Mapping[str, NodeReport]) -> ClusterProfile:
        """Return the profile of a cluster from the reports of its nodes, by name; the same object if none is new.

        Of a link that both ends have measured, the worse figures count. Links to nodes without a report, except the
        head, are left out. The reports are as nodes sent them, after `check_report`.
        """
        before = self._read
        self._read = {name: self._look(before.get(name), name, report) for name, report in reports.items()}
        is_same = list(before) == list(self._read) and all(before[name] is each for name, each in self._read.items())
        if not is_same:
            known = {*reports, self._latest.head}
            links = merge_links(link for each in self._read.values() for link in each.links if link.ends[1] in known)
            nodes = tuple(each.profile for each in self._read.values())
            unreachable = frozenset(
                (name, other) for name, each in reports.items() for other in each.unreached if other in reports
            )
            self._latest = replace(self._latest, nodes=nodes, links=tuple(links), unreachable=unreachable)
        return self._latest

    def _look(self, before: ReadReport | None, name: str, report: NodeReport) -> ReadReport:
        if before is not None and before.report is report:
            return before
        links = tuple(make_link(name, link) for link in report.links)
        return ReadReport(report, make_node(name, report, model=self._model), links)


def merge_links(links: Iterable[LinkProfile]) -> Iterable[LinkProfile]:
    """Return one link for each pair of nodes, with the longest round trip and the least bandwidth that was measured."""
    found: dict[frozenset[str], LinkProfile] = {}
    for link in links:
        pair = frozenset(link.ends)
        if (other := found.setdefault(pair, link)) is not link:
            found[pair] = replace(
                other,
                round_trip_s=max(link.round_trip_s, other.round_trip_s),
                bandwidth=min(link.bandwidth, other.bandwidth),
            )
    return found.values()
