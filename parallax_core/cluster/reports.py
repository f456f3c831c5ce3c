"""Turns what a node says of itself into the profile that placement uses, without believing everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from parallax_core.cluster.placement.devices import recognise_product
from parallax_core.contracts.placement import ClusterProfile, DeviceProfile, LinkProfile, NodeProfile
from parallax_core.contracts.stage import LayerRange
from parallax_core.wire.profile import DeviceReport, LinkReport, NodeReport

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
    )


def limit_device(device: DeviceProfile) -> DeviceProfile:
    """Return a profile that is at most `SLACK` times as fast as the data sheet of its product, if that is known."""
    known = recognise_product(device.name)
    if known is None:
        return device
    return replace(
        device,
        flops=min(device.flops, SLACK * known.flops),
        bandwidth=min(device.bandwidth, SLACK * known.bandwidth),
    )


def make_link(node: str, report: LinkReport) -> LinkProfile:
    """Return the link of a node from its report."""
    return LinkProfile(ends=(node, report.peer), round_trip_s=report.round_trip_s, bandwidth=report.bandwidth)


def make_cluster(reports: Mapping[str, NodeReport], head: str, *, model: str = "") -> ClusterProfile:
    """Return the profile of a cluster from the reports of its nodes, by name.

    Of a link that both ends have measured, the worse figures count. Links to nodes without a report, except the head,
    are left out.

    Args:
        reports: as nodes sent them, after `check_report`.
        head: the name of the node that plans; it sends no report.
        model: the full name of the model to place, for the layers that nodes have stored.
    """
    known = {*reports, head}
    links = [make_link(node, link) for node, report in reports.items() for link in report.links if link.peer in known]
    nodes = tuple(make_node(name, report, model=model) for name, report in reports.items())
    return ClusterProfile(nodes=nodes, links=tuple(merge_links(links)), head=head)


def merge_links(links: Iterable[LinkProfile]) -> Iterable[LinkProfile]:
    """Return one link for each pair of nodes, with the longest round trip and the least bandwidth that was measured."""
    found: dict[frozenset[str], LinkProfile] = {}
    for link in links:
        pair = frozenset(link.ends)
        other = found.get(pair, link)
        found[pair] = replace(
            other,
            round_trip_s=max(link.round_trip_s, other.round_trip_s),
            bandwidth=min(link.bandwidth, other.bandwidth),
        )
    return found.values()
