"""Reads the profile of a cluster from the answer of a running server to ``GET /v1/cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parallax_cluster.reports import merge_links
from parallax_core.api import HEAD, ClusterProfile, DeviceProfile, LinkProfile, NodeProfile, ParallaxError, Positive

NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]


class LiveLink(msgspec.Struct, frozen=True):
    """A link of a node, as it has measured it."""

    peer: str
    round_trip_seconds: NonNegative
    bandwidth: Positive


class LiveProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself; a server that is not new enough leaves out the fields with defaults."""

    device: str
    memory: Annotated[int, Meta(gt=0)]
    flops: Positive
    bandwidth: Positive
    flops_efficiency: Fraction = 1.0
    bandwidth_efficiency: Fraction = 1.0
    step_seconds: NonNegative = 0.0
    layer_seconds: NonNegative = 0.0
    expert_layer_seconds: NonNegative = 0.0
    forms: list[tuple[Positive, Positive, Positive]] = []
    measured: bool
    disk_bandwidth: Positive
    links: list[LiveLink]


class LiveNode(msgspec.Struct, frozen=True):
    """A node that has joined."""

    node: str
    profile: LiveProfile | None
    unreached: list[str] = []


class LiveCluster(msgspec.Struct, frozen=True):
    """The part of the answer that placement needs."""

    nodes: list[LiveNode]


def read_live_cluster(answer: Any, url: str) -> ClusterProfile:  # noqa: ANN401 -- any JSON
    """Return the nodes that have said what they are, and their links. Others are left out.

    Args:
        answer: of ``GET /v1/cluster``.
        url: of the server, for errors.

    Raises:
        ParallaxError: if there is no such node, or a figure is missing or of a wrong type or value.
    """
    try:
        nodes = msgspec.convert(answer, LiveCluster).nodes
    except msgspec.ValidationError as error:
        message = f"the server at {url} describes its nodes wrongly: {error}"
        raise ParallaxError(message, "use the same release here and there, or --nodes FILE") from error
    known = {node.node: node.profile for node in nodes if node.profile}
    if not known:
        message = f"no node of the server at {url} has reported its device yet"
        raise ParallaxError(
            message, "see `parallax nodes`; wait until they have measured themselves, or give --nodes FILE"
        )
    return ClusterProfile(
        nodes=tuple(_make_node(name, profile) for name, profile in known.items()),
        links=tuple(merge_links(_list_links(known))),
        head=HEAD,
        unreachable=frozenset((node.node, other) for node in nodes for other in node.unreached),
    )


def _make_node(name: str, profile: LiveProfile) -> NodeProfile:
    device = DeviceProfile(
        name=profile.device,
        memory=profile.memory,
        flops=profile.flops,
        bandwidth=profile.bandwidth,
        flops_efficiency=profile.flops_efficiency,
        bandwidth_efficiency=profile.bandwidth_efficiency,
        step_s=profile.step_seconds,
        layer_s=profile.layer_seconds,
        expert_layer_s=profile.expert_layer_seconds,
        forms=tuple(profile.forms),
        is_measured=profile.measured,
    )
    return NodeProfile(name=name, device=device, disk_bandwidth=profile.disk_bandwidth)


def _list_links(known: dict[str, LiveProfile]) -> Iterator[LinkProfile]:
    for name, profile in known.items():
        for link in profile.links:
            if link.peer in known or link.peer == HEAD:
                yield LinkProfile(
                    ends=(name, link.peer), round_trip_s=link.round_trip_seconds, bandwidth=link.bandwidth
                )
