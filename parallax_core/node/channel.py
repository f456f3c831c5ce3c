"""Sends and receives messages over a link."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from parallax_core.base.errors import IncompatibleNode, PeerLost
from parallax_core.base.ids import name_machine
from parallax_core.contracts.joining import Identified
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.contracts.transport import Frame, FrameLimits, Guarded, Link, Monitored, NodeRole
from parallax_core.node.message_limits import MessageLimits
from parallax_core.node.peer_watch import PeerWatch
from parallax_core.node.printable import tidy
from parallax_core.node.versions import own_versions
from parallax_core.wire.codec import DEFAULT_LIMITS, Kinds, decode, encode, find_number, index_kinds
from parallax_core.wire.errors import BadFrame, UnknownMessage, WireVersionMismatch
from parallax_core.wire.membership import HandOver
from parallax_core.wire.messages import DropReason, Message, UnsupportedMessage
from parallax_core.wire.versions import find_conflict

M = TypeVar("M", bound=Message)

logger = logging.getLogger(__name__)

LEAVE_S = 0.2
MOST_TASKS = 8
"""The most tasks of a channel before it tells its peer no more of dropped messages."""
STRANGERS = FrameLimits(header_bytes=2**17, frame_bytes=2**17, buffers=0)
"""The limits of frames from a peer that has not joined yet; a `Join` with all its names is smaller."""


class Channel:
    """A link that carries messages between nodes, encoded as frames on every transport."""

    def __init__(self, link: Link, limits: FrameLimits = DEFAULT_LIMITS) -> None:
        self._link = link
        self._limits = limits
        self.greeting: Message | None = None
        """The answer to a greeting of another version, or None."""
        self._fault: PeerLost | None = None
        """The error by which the peer was disconnected; later calls raise it again."""
        self._watch: PeerWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._successor: Channel | None = None
        """A link to the same node that takes over after a `HandOver`, and ends with this channel until then."""
        self._takers: dict[type, Callable[[Any], None]] = {}
        """By kind of message: the function that takes such messages, in place of `receive`."""
        self._kinds: Kinds = {}
        """The messages of services that this node takes on this link, by their tags."""
        self._drops = MessageLimits()
        self.is_greeted = False
        """Whether both ends have greeted; before, an unknown message ends the link."""
        self.silence_s = 0.0
        """Seconds of silence for which the peer was disconnected; 0: it was not, or for another reason."""
        self.ended = asyncio.Event()
        """Set once this end is closed, or a call has found that the peer is gone."""

    @property
    def peer(self) -> str:
        """The name of the node at the other end."""
        return self._link.peer

    @property
    def key(self) -> bytes:
        """The key that the peer has proved; empty if its transport has no keys, or none was required."""
        return self._link.key if isinstance(self._link, Identified) else b""

    @property
    def role(self) -> NodeRole:
        """The role that the peer's key allows; ``any`` if its transport has no keys."""
        return self._link.role if isinstance(self._link, Guarded) else "any"

    def check_role(self, role: NodeRole) -> None:
        """Check that the peer's key, if it has one, allows it to be a worker or a head to this node.

        Raises:
            PeerLost: if not.
        """
        if self.role not in {role, "any"}:
            name = name_machine(self.peer)
            hint = f"if it should be: `parallax keys allow PUBLIC_KEY {name} --role any`"
            raise PeerLost(f"node {self.peer!r} may not be a {role} here: its key is allowed as {self.role}", hint)

    def admit(self) -> None:
        """Accept messages of any size from now on: the peer has joined. Idempotent."""
        self._limits = DEFAULT_LIMITS
        if isinstance(self._link, Guarded):
            self._link.admit()

    def learn(self, kinds: Iterable[type[ServiceMessage]]) -> None:
        """Take these messages of services as well from now on; others are dropped, and their sender is told."""
        self._kinds = index_kinds([*self._kinds.values(), *kinds])

    def divert(self, kind: type[M], take: Callable[[M], None]) -> None:
        """Give messages of a kind to ``take`` from now on, as `receive` meets them between others."""
        if issubclass(kind, ServiceMessage):
            self.learn([kind])
        self._takers[kind] = take

    def watch(self, min_timeout_s: float) -> None:
        """Disconnect the peer once its heartbeats stop, as `FailureDetector` judges; needs a link that is `Monitored`.

        Not for a peer that may keep Python's interpreter lock for long, such as one that loads a stage.
        """
        self.unwatch()
        if isinstance(self._link, Monitored) and self._fault is None:
            self._watch = PeerWatch(self._link, min_timeout_s, self._lose)

    def unwatch(self) -> None:
        """Leave it to the transport again to notice that the peer is lost. Idempotent."""
        if self._watch is not None:
            self._watch.stop()

    async def send(self, message: Message) -> None:
        """Send a message, waiting while the receiver has too many unread ones.

        Raises:
            PeerLost: if the peer is gone, or this end is closed.
            ValueError: if the frame would exceed the limits; the channel stays usable.
        """
        try:
            await self._link.send(encode(tidy(message)))
        except PeerLost as error:
            raise self._explain(error) from error.__cause__

    async def receive(self) -> Message:
        """Return the next message. Cancelling the call loses no message.

        Messages of a service that this channel does not know, or gets too many of, are dropped; their sender is told.

        Raises:
            PeerLost: if the peer is gone, or has sent an invalid frame.
        """
        while True:
            message = await self._receive()
            if isinstance(message, ServiceMessage) and not self._drops.take(type(message), self._now()):
                self._drop(find_number(type(message)), "too many")
            elif (take := self._takers.get(type(message))) is not None:
                take(message)
            elif isinstance(message, UnsupportedMessage):
                logger.warning("message was dropped by node=%s tag=%d: %s", self.peer, message.kind, message.reason)
            else:
                return message

    async def _receive(self) -> Message:
        if self._fault is not None:
            raise self._fault
        while True:
            frame = await self._receive_frame()
            try:
                return tidy(decode(frame, self._limits, self._kinds))
            except UnknownMessage as error:
                if not self.is_greeted:
                    raise await self._cut_off(error) from error
                self._drop(error.tag, "unknown")
            except (BadFrame, WireVersionMismatch) as error:
                raise await self._cut_off(error) from error

    async def _cut_off(self, error: BadFrame | WireVersionMismatch) -> PeerLost:
        """Disconnect the peer, whose frame cannot be read, and return the error to raise."""
        self._fault = _explain_frame(self.peer, error)
        if isinstance(error, WireVersionMismatch) and error.sender is not None and self.greeting is not None:
            with contextlib.suppress(PeerLost):
                await self._link.send(encode(self.greeting))
        await self.leave()  # with its short timeout: the caller has to report the loss soon
        return self._fault

    def _drop(self, tag: int, reason: DropReason) -> None:
        """Tell the peer that a message was dropped, unless it was told just now, or does not read what it is told."""
        if len(self._tasks) < MOST_TASKS and self._drops.may_tell(tag, self._now()):
            logger.debug("message is dropped node=%s tag=%d: %s", self.peer, tag, reason)
            self._start(self._tell(UnsupportedMessage(tag, reason)))

    async def _tell(self, dropped: UnsupportedMessage) -> None:
        with contextlib.suppress(PeerLost):
            await self.send(dropped)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _receive_frame(self) -> Frame:
        while True:
            link = self._link
            try:
                return await link.receive()
            except PeerLost as error:
                if link is self._link:  # otherwise it was replaced meanwhile
                    raise self._explain(error) from error.__cause__

    async def close(self) -> None:
        """End the link; the peer still receives all earlier messages."""
        self.unwatch()
        self.ended.set()
        self._drop_successor()
        await self._link.close()

    async def leave(self) -> None:
        """End the link, and wait only a moment for the peer's goodbye, since a peer that hangs sends none."""
        self.unwatch()
        self.ended.set()
        self._drop_successor()
        await _close(self._link)

    async def hand_over(self, successor: Channel) -> None:
        """Send all further messages over another link to the same node; see `succeed_by`.

        Raises:
            PeerLost: if the link so far is lost.
        """
        before, self._link = self._link, successor._link
        try:
            await before.send(encode(HandOver()))  # behind all that is being sent already
        finally:
            await _close(before)

    def succeed_by(self, successor: Channel) -> None:
        """Receive what follows a `HandOver` over another link to the same node, in place of one of an earlier call."""

        def take_over(_: HandOver) -> None:
            del self._takers[HandOver]
            before, self._link, self._successor = self._link, successor._link, None
            self._start(_close(before))

        self._drop_successor()
        self._successor = successor
        self.divert(HandOver, take_over)

    def _drop_successor(self) -> None:
        if self._successor is not None:
            self._start(self._successor.leave())
            self._successor = None

    def _start(self, closing: Coroutine[None, None, None]) -> None:
        self._tasks.add(task := asyncio.get_running_loop().create_task(closing))
        task.add_done_callback(self._tasks.discard)

    def _lose(self, silence_s: float) -> None:
        message = f"node {self.peer!r} is cut off: no sign of life for {silence_s:.2g} s"
        self._fault, self.silence_s = PeerLost(message, "see the last lines of its log", peer=self.peer), silence_s
        self.unwatch()
        self.ended.set()
        self._drop_successor()
        self._start(_close(self._link))

    def _explain(self, error: PeerLost) -> PeerLost:
        """Return why the peer is lost: the error by which it was disconnected, else ``error``."""
        self.ended.set()
        error.peer = error.peer or self.peer
        return self._fault or error


def _explain_frame(peer: str, error: BadFrame | WireVersionMismatch) -> PeerLost:
    """Return the error that disconnects a peer after an unreadable frame."""
    message = f"node {peer!r} is cut off: {error.message}"
    if not isinstance(error, WireVersionMismatch):
        return PeerLost(message, error.hint, cause="invalid_frame", peer=peer)
    if error.sender is not None:
        message = find_conflict(own_versions(), error.sender, f"node {peer!r}")
    return IncompatibleNode(message, error.hint, cause="invalid_frame", peer=peer)


async def _close(link: Link) -> None:
    """Close a link, and wait only a moment for the peer's goodbye."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await link.close()
