"""Transports carry frames between named nodes. `parallax_core.wire` defines the content of frames.

A node has one transport. It listens at one address at most and connects to the addresses of others; a link goes both
ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from parallax_core.base.refs import Ref
from parallax_core.contracts.discovery import Discovery
from parallax_core.contracts.joining import JoinMethod
from parallax_core.contracts.tensor import Data

NodeRole = Literal["any", "worker", "head"]
"""What a node's key allows it to be: a worker runs stages and connects to neighbours; a head assigns stages."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message as bytes."""

    header: bytes
    buffers: tuple[Data, ...] = ()
    """The data of its tensors; borrowed, and must not be modified afterwards."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the header and the buffers."""
        return len(self.header) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The sizes a receiver accepts. A decoded message takes at most about 32 times its header's bytes in memory."""

    header_bytes: int = 4 * 2**20
    frame_bytes: int = 256 * 2**20
    """Bytes of the header and the buffers."""
    buffers: int = 64

    def check(self, frame: Frame) -> None:
        """Raise ValueError, naming the limit, if ``frame`` exceeds one or has no header."""
        if not frame.header:
            raise ValueError("its header is empty")
        if len(frame.header) > self.header_bytes:
            raise ValueError(f"its header has {len(frame.header)} bytes; at most {self.header_bytes} are allowed")
        if len(frame.buffers) > self.buffers:
            raise ValueError(f"it has {len(frame.buffers)} buffers; at most {self.buffers} are allowed")
        if (size := frame.num_bytes) > self.frame_bytes:
            raise ValueError(f"it has {size} bytes; at most {self.frame_bytes} are allowed")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportPlan:
    """The options of a transport. Filled by core from the command line and the configuration."""

    node: str
    """The name under which peers know this node; at most 256 characters."""
    listen: str = ""
    """The address to listen at, in the transport's notation, such as ``tcp://127.0.0.1:0``; empty: do not listen."""
    limits: FrameLimits = field(default_factory=FrameLimits)
    credit: int = 16
    """The number of frames in transit on a link before the sender waits for the receiver. At least 1."""
    timeout_s: float = 10.0
    """Seconds without a heartbeat after which a peer counts as lost: dead, hung, or cut off."""
    busy_s: float = 30.0
    """Seconds for which a thread of the transport sends heartbeats while its node's event loop is busy, so that peers
    do not take the node for hung, and for which a peer may send nothing while its connection shows that its process
    runs. Optional: without such a thread, or such a connection, the node is lost after ``timeout_s``."""
    strangers: FrameLimits | None = None
    """The limits of an incoming link until it is admitted (see `Guarded`); None: ``limits``."""
    heads: Mapping[str, bytes] = field(default_factory=dict)
    """The keys of heads to trust, by name, besides those that the transport knows itself; see `JoinMethod.find_key`.
    Read for each connection: a node that turns to another head changes it."""


class Link(Protocol):
    """A two-way connection to one peer. Frames arrive in the order sent, without loss or duplication.

    Frames that a peer sent before it closed its end are still received. Belongs to one event loop; if several tasks
    send at the same time, each frame is sent whole, in some order.
    """

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""

    async def send(self, frame: Frame) -> None:
        """Send a frame, after waiting while the receiver has too many frames to take (back-pressure).

        Returning does not mean that the frame has arrived. If cancelled, it sends the whole frame or nothing.

        Raises:
            PeerLost: if the peer is gone, or this end is closed.
            ValueError: if the frame exceeds the limits; the link stays usable.
        """

    async def receive(self) -> Frame:
        """Return the next frame. Cancelling it loses no frame.

        Raises:
            PeerLost: if no frame can follow: the peer is gone or sent an invalid or oversized frame, or this end is
                closed.
        """

    async def close(self) -> None:
        """Close the link at both ends, after delivering the frames that were sent. A second call does nothing."""


@runtime_checkable
class Guarded(Protocol):
    """An optional protocol of a `Link` whose transport authenticates peers."""

    @property
    def role(self) -> NodeRole:
        """The role that the peer's key allows."""

    def admit(self) -> None:
        """Raise the peer's limits to those of the plan, once it has introduced itself. A second call does nothing."""


@runtime_checkable
class Monitored(Protocol):
    """An optional protocol of a `Link` with heartbeats by its transport, also while a node's event loop is busy.

    Better still, it hears of a node that runs while its interpreter lock is held.

    Core measures the intervals between them, and takes a peer for lost sooner than the transport does: the more often
    they come, the sooner. Without it, a hung peer is lost after the transport's own timeout.
    """

    @property
    def timeout_s(self) -> float:
        """Seconds of silence after which the transport itself takes the peer for lost."""

    def monitor(self, hear: Callable[[], None]) -> None:
        """Call ``hear`` on the event loop at each sign of life, such as a heartbeat; it replaces an earlier one."""


@runtime_checkable
class MonitoredOnDemand(Monitored, Protocol):
    """An optional protocol of a `Monitored` link that saves heartbeats where neither end judges by them.

    A head has many nodes that wait, and judges those alone that have a stage.
    """

    def unmonitor(self) -> None:
        """Report no more, until `monitor` is called again. The peer is still lost after ``timeout_s`` of silence."""


class Transport(Protocol):
    """The connections of a node. Belongs to one event loop."""

    @property
    def address(self) -> str:
        """The address at which others reach this node, once started; empty if it does not listen."""

    async def start(self) -> None:
        """Start listening, if the plan says so. If it raises, nothing is left behind.

        Raises:
            ParallaxError: with a hint, if it cannot listen at that address.
        """

    async def connect(self, address: str, node: str) -> Link:
        """Connect to the node called ``node`` at ``address``.

        Raises:
            PeerLost: if no node answers there in time, or one of another name.
            ParallaxError: if ``address`` is not valid for this transport.
        """

    async def accept(self) -> Link:
        """Wait for the next incoming link. Cancelling it loses no link.

        Raises:
            PeerLost: if this transport is stopped.
        """

    async def stop(self) -> None:
        """Close every link and stop listening. May be called at any time; a second call does nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportSpec:
    """Offers a transport."""

    name: str
    """The name in ``--transport``."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[TransportPlan], Transport]]
    remedy: str = ""
    """What to do if the factory cannot be imported, such as the package to install."""
    place_local: Ref[Callable[[Path, str], str]] | None = None
    """Returns the address at which a node listens for others on this machine, given a folder that only this user can
    enter and the node's name; None: users have to give an address."""
    place_near: Ref[Callable[[str, str], str]] | None = None
    """Returns the address at which a node listens for nodes on the same network as a given address, given that address
    and the node's name; None: users have to give an address."""
    joining: Ref[Callable[[], JoinMethod]] | None = None
    """Makes and uses join codes; None: machines join by keys that users exchange."""
    discovery: Ref[Callable[[], Discovery]] | None = None
    """Finds nodes on the networks of a machine; None: users have to give an address, or a code that has it."""
    timeout_s: float = 2.5
    """`TransportPlan.timeout_s` unless the user sets ``peer_timeout``: longer than heartbeats are ever delayed."""
