"""One end of a link: credit, frame order, heartbeats, closing. A `LinkSender` carries its messages."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from parallax_core.api import Data, Frame, FrameLimits, LossCause, PeerLost, TransportPlan
from parallax_transport_zmq.arrivals import Arrivals
from parallax_transport_zmq.heartbeat import HeartbeatPace
from parallax_transport_zmq.keyfile import NodeRole
from parallax_transport_zmq.message import BadMessage, Kind, pack_reason, pack_taken, unpack_reason, unpack_taken
from parallax_transport_zmq.parcel import Parcel, cut_frame

HERE = "this end is closed"


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a link."""

    name: str
    credit: int
    """The number of frames it buffers before it receives them."""
    key: bytes = b""
    """The public key it has proved; empty where file permissions guard the socket."""
    role: NodeRole = "any"
    """The role that the key gives it."""
    arrivals: Arrivals | None = None
    """What the kernel knows of its connection; None: it is not asked."""


class LinkSender(Protocol):
    """Carries the messages of a link."""

    def post_threadsafe(self, message: Data) -> None:
        """Send without waiting, from any thread but the loop's.

        Raises:
            ConnectionError: if the peer cannot be reached any more.
        """

    def post(self, message: Data) -> None:
        """Send without waiting.

        Raises:
            ConnectionError: if the peer cannot be reached any more.
        """

    def hang_up(self) -> None:
        """Close the connection; posted messages are still sent for a moment. Called once."""


class ZmqLink:
    """One end of a link; see `parallax_core.api.Link`, `Guarded` and `MonitoredOnDemand`."""

    def __init__(self, plan: TransportPlan, sender: LinkSender, peer: Peer, limits: FrameLimits | None = None) -> None:
        """Begin a link to ``peer``, which may send frames up to ``limits`` until it is admitted."""
        self._plan = plan
        self._sender = sender
        self._peer = peer
        self._limits = limits or plan.limits
        self._credit = min(peer.credit, plan.credit)  # neither end buffers more than its credit
        self._sent = self._acknowledged = 0
        self._taken = self._granted = 0
        self._frames: deque[Frame] = deque()
        self._parcel: Parcel | None = None
        self._lost, self._lost_at = "", math.inf
        self._cause: LossCause = "link"
        self._turn = asyncio.Lock()  # first come, first served
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_grant_due = False
        self._posting = threading.Lock()
        """Held while messages are posted that must follow each other, such as the parts of a frame."""
        self._was_heard = True
        self._pace = HeartbeatPace(plan)
        self._judged = self._loop.time()
        """When silence was last judged."""
        self._listened_s = 0.0
        """Seconds since then in which this end listened."""
        self._silence_s = self._mute_s = 0.0
        """Seconds without any sign of life, and without a message."""
        self._tell: Callable[[], None] | None = None

    @property
    def timeout_s(self) -> float:
        """Seconds of silence after which the peer is lost; see `Monitored`."""
        return self._plan.timeout_s

    def monitor(self, hear: Callable[[], None]) -> None:
        """Call ``hear`` whenever a message of the peer arrives, and want heartbeats often; see `Monitored`."""
        self._set_monitor(hear)

    def unmonitor(self) -> None:
        """Want heartbeats less often; see `MonitoredOnDemand`."""
        if self._tell is not None:
            self._set_monitor(None)

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""
        return self._peer.name

    @property
    def key(self) -> bytes:
        """The public key that the peer has proved; empty if none was required."""
        return self._peer.key

    @property
    def role(self) -> NodeRole:
        """The peer's role; see `Guarded`."""
        return self._peer.role

    @property
    def is_over(self) -> bool:
        """Whether no more messages cross, not even a goodbye."""
        return self._over.is_set()

    @property
    def frames(self) -> Sequence[Frame]:
        """The frames that have come and were not received yet."""
        return self._frames

    def admit(self) -> None:
        """Accept frames up to the limits of the plan; see `Guarded`."""
        self._limits = self._plan.limits

    async def send(self, frame: Frame) -> None:
        """Send a frame; waits while the receiver has used up its credit.

        Raises:
            PeerLost: if the peer is gone, or this end is closed.
            ValueError: if the frame is beyond the limits; the link goes on.
        """
        self._plan.limits.check(frame)
        async with self._turn:
            while not self._lost and self._sent - self._acknowledged >= self._credit:
                self._room.clear()
                await self._room.wait()
            if not self._lost:
                self._sent += 1
                self._granted = self._taken
                self._post(*cut_frame(frame, self._taken))
        if self._lost:
            raise self._make_error()

    async def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            PeerLost: if the link has ended and no frame is left.
        """
        while not self._frames and not self._lost:
            self._news.clear()
            await self._news.wait()
        if not self._frames:
            raise self._make_error()
        self._taken += 1
        is_low = 2 * (self._taken - self._granted) >= self._credit  # else the peer has at least half of its credit
        if is_low and not self._is_grant_due:  # the next frame sent may carry it; so may one message for several frames
            self._is_grant_due = True
            self._loop.call_soon(self._grant)
        return self._frames.popleft()

    async def close(self) -> None:
        """End the link at both ends, once the peer has received all frames, or is lost. Idempotent."""
        if not self._lost:
            self._lose(HERE)
            self._post(Kind.BYE)
        self._frames.clear()
        self._lost = HERE
        await self._over.wait()

    def hear(self, message: zmq.Frame) -> None:
        """Process a message of the peer."""
        if self.is_over:
            return
        self._was_heard = True
        if self._tell is not None:
            self._tell()
        try:
            self._read(message.buffer)
        except BadMessage as error:
            self.break_off(f"it sent {error}", f"you sent {error}", "invalid_frame")

    def beat(self, listened_s: float) -> None:
        """Send a heartbeat if one is due, and end the link if the peer was silent for too long.

        A peer whose connection shows that its process runs may send no message for up to ``busy_s``.

        Args:
            listened_s: seconds since the last call in which this end listened.
        """
        now = self._loop.time()
        self._listened_s += listened_s
        if self._pace.is_over(self._judged, now):
            self._judge(now)

    def _judge(self, now: float) -> None:
        listened_s, timeout_s = self._listened_s, self._plan.timeout_s
        self._mute_s = 0.0 if self._was_heard else self._mute_s + listened_s
        is_alive = self._was_heard or self._has_arrivals(now - self._judged)
        self._silence_s = 0.0 if is_alive else self._silence_s + listened_s
        self._was_heard, self._judged, self._listened_s = False, now, 0.0
        if self._lost and now - self._lost_at >= self._plan.busy_s:
            self.finish(HERE)  # the peer lives, and says no goodbye
        elif self._silence_s >= timeout_s:
            self.break_off(f"no sign of life for {timeout_s:g} s", "you were silent for too long")
        elif self._mute_s >= (busy_s := max(timeout_s, self._plan.busy_s)):
            self.break_off(f"its process runs, but has sent nothing for {busy_s:g} s", "you sent nothing for too long")
        elif self._pace.is_over(self._pace.posted, now):
            self._post(self._pace.pack())

    def beat_threadsafe(self) -> None:
        """Send a heartbeat for a busy loop, from another thread; a message being posted counts as one, too."""
        now = self._loop.time()
        if self.is_over or not self._pace.is_over(self._pace.posted, now) or not self._posting.acquire(blocking=False):
            return
        self._pace.posted = now
        try:
            self._sender.post_threadsafe(self._pace.pack())
        except ConnectionError:  # the loop will notice
            return
        finally:
            self._posting.release()

    def part_threadsafe(self, reason: str) -> None:
        """End the link for a loop that hangs, from another thread; the loop learns of it if it ever goes on."""
        if self._lost or not self._posting.acquire(blocking=False):
            return
        try:
            self._sender.post_threadsafe(pack_reason(Kind.BYE, reason))
            self._lost = reason
            self._loop.call_soon_threadsafe(self._lose, reason)
        except (ConnectionError, RuntimeError):  # the peer is gone, or the loop is closed
            return
        finally:
            self._posting.release()

    def break_off(self, reason: str, farewell: str, cause: LossCause = "link") -> None:
        """End the link at once; send ``farewell`` if the peer still listens. Frames that have come can be received."""
        if not self.is_over:
            self._lose(reason, cause)
            self._post(pack_reason(Kind.BYE, farewell))
            self.finish(reason)

    def finish(self, reason: str) -> None:
        """Record that the peer is gone, and close the connection."""
        if not self.is_over:
            self._over.set()
            self._lose(reason)
            self._parcel = None
            self._sender.hang_up()

    def _set_monitor(self, tell: Callable[[], None] | None) -> None:
        self._tell, self._pace.is_monitored = tell, tell is not None
        if not self._lost:
            self._post(self._pace.pack())  # the peer knows at once

    def _has_arrivals(self, seconds: float) -> bool:
        """Return whether anything has come on the connection in that time; if so, tell who monitors the link."""
        arrivals = self._peer.arrivals
        is_alive = arrivals is not None and arrivals.has_news(seconds)
        if is_alive and self._tell is not None:
            self._tell()
        return is_alive

    def _read(self, message: memoryview) -> None:
        if self._parcel is not None:
            self._parcel.add(message)
            self._admit(self._parcel)
            return
        match bytes(message[:1]):
            case Kind.FRAME:
                self._begin(message)
            case Kind.TAKEN:
                self._acknowledge(unpack_taken(bytes(message)))
            case Kind.BEAT:
                self._pace.hear(bytes(message))
            case Kind.BYE:
                self._part(unpack_reason(bytes(message)))
            case Kind.HEARD_BYE if self._lost:
                self.finish(HERE)
            case kind:
                raise BadMessage(f"a message of the unknown kind {kind!r}")

    def _begin(self, head: memoryview) -> None:
        if len(self._frames) >= self._plan.credit:
            raise BadMessage(f"more than {self._plan.credit} frames ahead")
        parcel = Parcel(head, self._limits)
        self._acknowledge(parcel.taken)
        self._admit(parcel)

    def _admit(self, parcel: Parcel) -> None:
        self._parcel = None if parcel.is_whole else parcel
        if parcel.is_whole and not self._lost:
            self._frames.append(parcel.open())
            self._news.set()

    def _acknowledge(self, count: int) -> None:
        if not self._acknowledged <= count <= self._sent:
            raise BadMessage(f"a count of {count} frames received, where {self._sent} were sent")
        self._acknowledged = count
        self._room.set()

    def _part(self, reason: str) -> None:
        self._post(Kind.HEARD_BYE)
        self.finish(f"it broke off: {reason}" if reason else "it closed the link")

    def _grant(self) -> None:
        self._is_grant_due = False
        if self._granted != self._taken and not self._lost:
            self._granted = self._taken
            self._post(pack_taken(self._taken))

    def _post(self, *messages: Data) -> None:
        self._pace.posted = self._loop.time()
        try:
            with self._posting:
                for message in messages:
                    self._sender.post(message)
        except ConnectionError:
            self.finish("the connection broke")

    def _lose(self, reason: str, cause: LossCause = "link") -> None:
        self._lost_at = min(self._lost_at, self._loop.time())
        if not self._lost:
            self._lost, self._cause = reason, cause
        self._room.set()
        self._news.set()

    def _make_error(self) -> PeerLost:
        message = f"the link from node {self._plan.node!r} to {self.peer!r} is gone: {self._lost}"
        return PeerLost(message, f"look at the last lines of the log of {self.peer}", cause=self._cause, peer=self.peer)
