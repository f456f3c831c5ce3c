"""What a node says of itself: its device, its disk, and the links that it measured.

A node that has joined sends a `NodeReport` as soon as it can, and again when something has changed. All numbers are
finite and within ranges that are checked during decoding; a report beyond them is a `BadFrame`. Whether a report is
true is found out later: by the step times of the node's stage.

The head tells a node which others to measure the link to (`Peers`). The node makes a link to each from time to time,
with a `Hello` that says so, sends a few `Probe`, and gets a `ProbeAnswer` to each. Before a pipeline is to lead from
one node to another, the head has the first connect to the second (`TryLink`), and hears whether that works
(`LinkTried`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import msgspec

from parallax_cluster.labels import MOST_LABELS, is_label
from parallax_core.api import (
    MOST_TEXT,
    Count,
    DType,
    Name,
    PeerKey,
    ServiceMessage,
    Text,
    check_words,
    make_printable,
    require,
)

MOST_BYTES = 2**50
"""The most bytes of memory, or of a disk."""
MOST_MODELS = 64
"""The most stored models in a report."""
MOST_LINKS = 1024
"""The most links in a report."""
MOST_PEERS = 64
"""The most nodes that a head introduces to another at once."""
MOST_VERSIONS = 64
"""The most distributions in a report."""
MOST_FORMS = 8
"""The most forms of weights in a report."""
MOST_PROBE = 2**18
"""The most bytes of a probe."""

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
Flops = Annotated[float, msgspec.Meta(ge=1e6, le=1e17)]
Bandwidth = Annotated[float, msgspec.Meta(ge=1e3, le=1e15)]
Share = Annotated[float, msgspec.Meta(ge=0.01, le=1)]
StepSeconds = Annotated[float, msgspec.Meta(ge=0, le=60)]
LayerSeconds = Annotated[float, msgspec.Meta(ge=0, le=10)]
FormReport = tuple[Annotated[float, msgspec.Meta(ge=0.01, le=16)], Flops, Bandwidth]
"""The bytes of a weight in a form, and the FLOPs and bytes per second with such weights."""
RttSeconds = Annotated[float, msgspec.Meta(ge=0, le=60)]


class DeviceReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True):
    """The device of a node; see `DeviceProfile` for the fields."""

    memory: Bytes
    flops: Flops
    bandwidth: Bandwidth
    flops_efficiency: Share = 1.0
    bandwidth_efficiency: Share = 1.0
    step_s: StepSeconds = 0.0
    layer_s: LayerSeconds = 0.0
    name: Name = ""
    total_memory: Bytes = 0
    is_measured: bool = False
    expert_layer_s: LayerSeconds = 0.0
    forms: Annotated[tuple[FormReport, ...], msgspec.Meta(max_length=MOST_FORMS)] = ()


class StoredLayers(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Layers of a model that are on the disk of a node: ``start`` to ``stop``, half open."""

    model: Name
    """The full name, ``source:name``."""
    start: Count
    stop: Count


class LinkReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The measured connection of a node to another one; see `LinkProfile`."""

    peer: Name
    round_trip_s: RttSeconds
    bandwidth: Bandwidth
    relay: Name = ""
    """The relay over which the other node was reached; empty: directly."""


class NodeReport(ServiceMessage, frozen=True, kw_only=True, tag=22):
    """What a node says of itself, to its head, at any time after its `Join`."""

    most_bytes: ClassVar[int] = 2**22

    backend: Name
    """The backend that its device was measured with."""
    device: DeviceReport
    dtype: DType = "auto"
    disk_bandwidth: Bandwidth = 1e9
    """Bytes per second; see `NodeProfile`."""
    disk_free: Bytes = 0
    stored: Annotated[tuple[StoredLayers, ...], msgspec.Meta(max_length=MOST_MODELS)] = ()
    links: Annotated[tuple[LinkReport, ...], msgspec.Meta(max_length=MOST_LINKS)] = ()
    leases: bool = False
    """Whether several pipelines can use it; see `BackendSpec.leases`."""
    unreached: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_LINKS)] = ()
    """The nodes to which it could not connect when measuring links."""
    labels: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=MOST_LABELS)] = ()
    """The labels of its machine: keys with values."""
    versions: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=MOST_VERSIONS)] = ()
    """The distributions of its plugins, and of core, with their versions."""
    max_context: Count = 0
    """The most tokens of a request on it; 0: as many as the model takes."""

    def check(self) -> None:
        """Check that the fields fit each other, and the texts."""
        check_report(self)


class Peer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Another node of the cluster."""

    node: Name
    address: Text
    """Where it listens."""
    key: PeerKey = b""
    """The key that it proves; empty: the node knows it, or none is needed."""
    is_measured: bool = True
    """Whether the receiver is to measure the link to it; otherwise it is the other node that does."""


class Peers(ServiceMessage, frozen=True, tag=23):
    """Names the nodes with links to or from a node to be measured; from its head."""

    most_bytes: ClassVar[int] = 2**20

    peers: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MOST_PEERS)] = ()

    def check(self) -> None:
        """Check the texts."""
        for peer in self.peers:
            check_peer(peer)


class TryLink(ServiceMessage, frozen=True, tag=44):
    """Asks a node to connect to another at once, or to trust the key of one that will; from its head."""

    most_per_s: ClassVar[float] = 1000.0

    peer: Peer
    """The other node; if ``is_measured``, the receiver is to connect to it, and otherwise it to the receiver."""

    def check(self) -> None:
        """Check the texts."""
        check_peer(self.peer)


class LinkTried(ServiceMessage, frozen=True, tag=45):
    """Reports whether a node could connect to another one, as its head has asked (`TryLink`)."""

    most_per_s: ClassVar[float] = 1000.0

    peer: Name
    is_reached: bool
    reason: Text = ""
    """Why not."""

    def check(self) -> None:
        """Check the name."""
        check_words(self.peer)

    def tidy(self) -> Self:
        """Return the message with the reason as one printable line."""
        return msgspec.structs.replace(self, reason=make_printable(self.reason, MOST_TEXT))


class Probe(ServiceMessage, frozen=True, tag=24):
    """Asks for an answer at once, on a link that is being measured."""

    most_bytes: ClassVar[int] = MOST_PROBE + 64

    data: Annotated[bytes, msgspec.Meta(max_length=MOST_PROBE)] = b""
    """Bytes of no meaning, to measure the bandwidth."""


class ProbeAnswer(ServiceMessage, frozen=True, tag=25):
    """Answers a `Probe`."""


def check_peer(peer: Peer) -> None:
    """Check the texts of a peer.

    Raises:
        BadFrame: if one has unprintable characters.
    """
    check_words(peer.node, peer.address)


def check_report(report: NodeReport) -> None:
    """Check a report beyond its types.

    Raises:
        BadFrame: if its fields do not fit each other, or a text has unprintable characters.
    """
    device = report.device
    check_words(report.backend, device.name, *(each.model for each in report.stored))
    check_words(*report.unreached, *(word for each in report.links for word in (each.peer, each.relay)))
    require(
        not device.total_memory or device.memory <= device.total_memory, "a device has more free memory than memory"
    )
    check_words(*(word for pair in report.versions for word in pair))
    require(all(is_label(key, value) for key, value in report.labels), "a label has another form than KEY=VALUE")
    require(all(each.start < each.stop for each in report.stored), "a node has stored layers that do not exist")
