"""Transports: frames between named nodes. What a frame says is the business of `parallax_core.wire`.

A node has one transport. It listens at one address, if it listens at all, and makes links to the addresses of others;
a link goes both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from parallax_core.base.refs import Ref
from parallax_core.contracts.tensor import Data

NodeRole = Literal["any", "worker", "head"]
"""What a node may be to another: a worker runs stages, and is a neighbour of such; a head gives stages to workers."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message as bytes."""

    header: bytes
    buffers: tuple[Data, ...] = ()
    """The data of its tensors; borrowed, and never written to once they are here."""

    @property
    def num_bytes(self) -> int:
        """Header and buffers together."""
        return len(self.header) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a receiver is ready to hold. A message takes at most about 32 times the bytes of its header in memory."""

    header_bytes: int = 4 * 2**20
    frame_bytes: int = 256 * 2**20
    """Header and buffers together."""
    buffers: int = 64

    def check(self, frame: Frame) -> None:
        """Raise ValueError, saying what there is too much of, if ``frame`` is beyond a limit or has no header."""
        if not frame.header:
            raise ValueError("its header is empty")
        if len(frame.header) > self.header_bytes:
            raise ValueError(f"its header has {len(frame.header)} bytes, and {self.header_bytes} are allowed")
        if len(frame.buffers) > self.buffers:
            raise ValueError(f"it has {len(frame.buffers)} buffers, and {self.buffers} are allowed")
        if (size := frame.num_bytes) > self.frame_bytes:
            raise ValueError(f"it has {size} bytes, and {self.frame_bytes} are allowed")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportPlan:
    """What a transport is asked to be. Filled by core from the command line and the configuration."""

    node: str
    """The name of this node, as its peers will know it; at most 256 characters."""
    listen: str = ""
    """Where to listen, in the transport's own words, such as ``tcp://127.0.0.1:0``; empty: make links only."""
    limits: FrameLimits = field(default_factory=FrameLimits)
    credit: int = 16
    """How many frames a link carries that its receiver has not taken; a sender waits beyond that. At least 1."""
    timeout_s: float = 10.0
    """After so many seconds without a sign of life, a peer counts as lost: dead, hung, or cut off."""
    busy_s: float = 30.0
    """For so long a transport gives signs of life beside the event loop of its node while that is busy, by a thread of
    its own, so that its peers do not take it for hung. Optional: one that cannot is lost after ``timeout_s``."""
    strangers: FrameLimits | None = None
    """What a link that another node makes may carry until it is admitted (see `Guarded`); None: as much as any."""


class Link(Protocol):
    """Frames to one peer and from it, each way in the order they were sent, none lost, none doubled.

    Frames a peer sent before it closed its end are still received. Belongs to one event loop; of several tasks that
    send at once each frame goes whole, in some order.
    """

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""

    async def send(self, frame: Frame) -> None:
        """Hand over a frame, waiting while the receiver has too many that it has not taken (back-pressure).

        That it returns does not mean that the frame has arrived. Cancelling it sends the frame whole or not at all.

        Raises:
            PeerLost: if the peer is gone, or this end is closed.
            ValueError: if the frame is beyond the limits; the link goes on.
        """

    async def receive(self) -> Frame:
        """Return the next frame. Cancelling it loses none.

        Raises:
            PeerLost: if there will be none: the peer is gone, sent what is no frame or one beyond the limits, or this
                end is closed.
        """

    async def close(self) -> None:
        """End the link at both ends, after what was sent has been handed on. Twice is harmless."""


@runtime_checkable
class Guarded(Protocol):
    """An optional protocol beside `Link`, for transports that know more of a peer than its name."""

    @property
    def role(self) -> NodeRole:
        """What the peer may be to this node, by the key it has proved."""

    def admit(self) -> None:
        """Take frames up to the limits of the plan: the peer has said what it is here for. Twice is harmless."""


class Transport(Protocol):
    """The node's way to others. Belongs to one event loop."""

    @property
    def address(self) -> str:
        """Where others reach this node, once it is started; empty if it does not listen."""

    async def start(self) -> None:
        """Begin to listen, if asked to. A start that raises leaves nothing behind.

        Raises:
            ParallaxError: with a hint, if it cannot listen there.
        """

    async def connect(self, address: str, node: str) -> Link:
        """Make a link to the node called ``node`` at ``address``.

        Raises:
            PeerLost: if nobody answers there in time, or somebody with another name.
            ParallaxError: if ``address`` is none of this transport's.
        """

    async def accept(self) -> Link:
        """Wait for the next link that another node makes. Cancelling it loses none.

        Raises:
            PeerLost: if this transport is stopped.
        """

    async def stop(self) -> None:
        """Close every link, and listen no more. Twice is harmless; legal at any time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportSpec:
    """Offers a transport."""

    name: str
    """What users write in ``--transport``."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[TransportPlan], Transport]]
    remedy: str = ""
    """What to do when the factory cannot be imported, such as what to install."""
    place_local: Ref[Callable[[Path, str], str]] | None = None
    """Given a folder that only this user can enter and a node's name, where that node listens for others of this
    machine; None: users have to say."""
    place_near: Ref[Callable[[str, str], str]] | None = None
    """Given an address and a node's name, where that node listens to be reached by the nodes that are reached at
    addresses like it; None: users have to say."""
