"""The transport between nodes of one process: frames are passed on as they are.

It behaves as a transport between machines: frames are checked against the limits, a link carries only as many as its
receiver has credit for, and links end for the same reasons. Only a hung peer is never detected, since all nodes share
its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.contracts.transport import Frame, FrameLimits, TransportPlan

SCHEME = "inprocess://"

LISTENERS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, InProcessTransport]] = (
    WeakKeyDictionary()
)
"""The listening node of each address, by event loop; closed loops and their nodes are forgotten."""


class Pipe:
    """A queue of frames in one direction, at most ``credit`` at a time."""

    def __init__(self, credit: int, limits: FrameLimits) -> None:
        self._credit = credit
        self._limits = limits
        self._frames: deque[Frame] = deque()
        self._is_over = False
        self._turn = asyncio.Lock()  # first come, first served
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self._update()

    async def put(self, frame: Frame) -> bool:
        """Add a frame once there is room, and return True; return False if the pipe has ended."""
        async with self._turn:
            while not self._is_over and len(self._frames) >= self._credit:
                await self._room.wait()
            if not self._is_over:
                self._frames.append(frame)
                self._update()
            return not self._is_over

    async def take(self) -> Frame | None:
        """Wait for the next frame and return it, or None if the pipe has ended and is empty.

        Raises:
            ValueError: if it exceeds the limits of the receiver.
        """
        while not self._is_over and not self._frames:
            await self._news.wait()
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._update()
        self._limits.check(frame)
        return frame

    def end(self, *, drop: bool) -> None:
        """Accept no more frames; those in the pipe are still received unless ``drop`` is true."""
        self._is_over = True
        if drop:
            self._frames.clear()
        self._update()

    def _update(self) -> None:
        _set(self._room, self._is_over or len(self._frames) < self._credit)
        _set(self._news, self._is_over or bool(self._frames))


class InProcessLink:
    """One end of a link; see `parallax_core.contracts.transport.Link`."""

    def __init__(self, owner: InProcessTransport, peer: str, incoming: Pipe, outgoing: Pipe) -> None:
        self._owner = owner
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        owner.links.add(self)

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""
        return self._peer

    async def send(self, frame: Frame) -> None:
        """Send a frame, after waiting while the receiver has too many frames to take.

        Raises:
            PeerLost: if the peer is gone, or this end is closed.
            ValueError: if the frame exceeds the limits; the link stays usable.
        """
        self._owner.plan.limits.check(frame)
        if not await self._outgoing.put(frame):
            raise self._lost()

    async def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            PeerLost: if no frame can follow.
        """
        try:
            frame = await self._incoming.take()
        except ValueError as error:
            self.end()
            message = f"node {self._peer!r} sent a frame that is too large: {error}"
            raise PeerLost(message, "give both nodes the same limits", cause="invalid_frame") from error
        if frame is None:
            raise self._lost()
        return frame

    async def close(self) -> None:
        """Close the link at both ends; frames sent before are still received. A second call does nothing."""
        self.end()

    def end(self) -> None:
        """Do what `close` does."""
        self._owner.links.discard(self)
        self._incoming.end(drop=True)
        self._outgoing.end(drop=False)

    def _lost(self) -> PeerLost:
        message = f"the link between nodes {self._owner.plan.node!r} and {self._peer!r} is closed"
        return PeerLost(message, "see the last log lines of the other node")


class InProcessTransport:
    """The connections of a node on one event loop; see `parallax_core.contracts.transport.Transport`.

    Addresses are ``inprocess://NAME``. To listen at ``inprocess://`` without a name takes a free one, like port 0.
    """

    def __init__(self, plan: TransportPlan) -> None:
        self.plan = plan
        self.links: set[InProcessLink] = set()
        """The open ends of links at this node."""
        self._address = ""
        self._pending: deque[InProcessLink] = deque()
        self._news = asyncio.Event()
        self._is_stopped = False

    @property
    def address(self) -> str:
        """The address at which others reach this node, once started; empty if it does not listen."""
        return self._address

    async def start(self) -> None:
        """Start listening, if the plan says so.

        Raises:
            ParallaxError: if another node listens there, or the address is not valid for this transport.
        """
        if not self.plan.listen:
            return
        address, listeners = _check(self.plan.listen), _listeners()
        if address == SCHEME:
            names = (f"{SCHEME}{self.plan.node}-{number}" for number in count(1))
            address = next(name for name in names if name not in listeners)
        if address in listeners:
            message = f"node {listeners[address].plan.node!r} of this process listens at {address} already"
            raise ParallaxError(message, f"choose another name, or {SCHEME} for one that is free")
        self._address = address
        listeners[address] = self

    async def connect(self, address: str, node: str) -> InProcessLink:
        """Connect to the node called ``node`` at ``address``.

        Raises:
            PeerLost: if no node listens there, or one of another name.
            ParallaxError: if ``address`` is not valid for this transport.
        """
        listener = _listeners().get(_check(address))
        if listener is None or self._is_stopped:
            message = f"node {self.plan.node!r} has stopped" if self._is_stopped else f"no node listens at {address}"
            raise PeerLost(message, "in-process nodes must share one event loop")
        if listener.plan.node != node:
            message = f"the node at {address} is called {listener.plan.node!r}, not {node!r}"
            raise PeerLost(message, "check the address")
        there = Pipe(listener.plan.credit, listener.plan.limits)
        back = Pipe(self.plan.credit, self.plan.limits)
        listener.offer(InProcessLink(listener, self.plan.node, there, back))
        return InProcessLink(self, node, back, there)

    def offer(self, link: InProcessLink) -> None:
        """Queue ``link`` for `accept`."""
        self._pending.append(link)
        self._news.set()

    async def accept(self) -> InProcessLink:
        """Wait for the next incoming link.

        Raises:
            PeerLost: if this transport is stopped.
        """
        while not self._pending and not self._is_stopped:
            self._news.clear()
            await self._news.wait()
        if self._is_stopped:
            message = f"node {self.plan.node!r} has stopped"
            raise PeerLost(message)
        return self._pending.popleft()

    async def stop(self) -> None:
        """Close every link and stop listening. May be called at any time; a second call does nothing."""
        self._is_stopped = True
        if self._address and _listeners().get(self._address) is self:
            del _listeners()[self._address]
        self._pending.clear()
        for link in list(self.links):
            link.end()
        self._news.set()


def _listeners() -> WeakValueDictionary[str, InProcessTransport]:
    return LISTENERS.setdefault(asyncio.get_running_loop(), WeakValueDictionary())


def _check(address: str) -> str:
    if not address.startswith(SCHEME):
        message = f"{address!r} is not an in-process address"
        raise ParallaxError(message, f"write {SCHEME}NAME")
    return address


def _set(event: asyncio.Event, truth: bool) -> None:  # noqa: FBT001 - the state of the event is the argument
    if truth:
        event.set()
    else:
        event.clear()
