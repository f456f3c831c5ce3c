"""Forwards streams of bytes between nodes that cannot reach each other.

All that a relay reads comes over links that its transport has authenticated, from nodes that have joined. It forwards
bytes that the two ends have encrypted, and keeps none but those that are on their way: each link has credit for a few
messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from parallax_cluster.node.relay.limits import MachinePair, Quotas, RelayLimits, Throttle, make_pair
from parallax_cluster.wire.relay import TOKEN_BYTES, NotReached, PickUp, Reach, Reached, Ring
from parallax_core.api import LinkPurpose, PeerLost, name_machine
from parallax_core.api.node import ApiData, Channel, Message, Purpose

KNOWN = (Reach, Ring, PickUp, Reached, NotReached)
"""The messages of relays; a link over which another one comes than is due ends."""
FIRST_S = 5.0
"""Seconds that a node has to say what a stream is for."""
ANSWER_S = 5.0
"""Seconds that a node has to answer a call: the life of a token."""
IDLE_S = 60.0
"""Seconds without a byte in one direction after which a stream ends; links send signs of life all the time."""
MOST_STREAMS, MOST_OF_ONE = 256, 32
"""The most streams at the same time: of all nodes, and of those of one machine that calls others."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ringing:
    """A node that was told of a call, and is to answer."""

    node: str
    answered: asyncio.Future[Channel]


class RelayServer:
    """Links nodes to each other. Belongs to one event loop."""

    def __init__(self, limits: RelayLimits, is_member: Callable[[str], bool]) -> None:
        """Forward within ``limits`` for the nodes of whose names ``is_member`` is true."""
        self.is_member = is_member
        """Returns whether a node may use this relay."""
        self._rate = Throttle(limits.bytes_per_s)
        self._quotas = Quotas(limits.bytes_per_day, time.monotonic)
        self._controls: dict[str, Channel] = {}
        self._calls: dict[bytes, Ringing] = {}
        self._streams: list[str] = []
        """The machine that has called, of each stream."""
        self._silent: list[str] = []
        """The machine of each link that has not said yet what stream it is for."""

    @property
    def num_streams(self) -> int:
        """The number of streams, including those that are being made."""
        return len(self._streams)

    @property
    def reachable(self) -> frozenset[str]:
        """The nodes that can be called."""
        return frozenset(self._controls)

    @property
    def purposes(self) -> dict[str, LinkPurpose]:
        """How to serve links of the users of this relay, by purpose."""
        serves = {"relay": self.hold, "stream": self.carry}
        return {name: LinkPurpose(serve=serve, role=None, limits_itself=True) for name, serve in serves.items()}

    async def serve(self, channel: Channel, purpose: Purpose) -> None:
        """Serve a link whose purpose is ``relay`` or ``stream``, until it ends.

        Raises:
            PeerLost: if it ends, its node may not have it, or it has another purpose.
        """
        match purpose:
            case "relay":
                await self.hold(channel)
            case "stream":
                await self.carry(channel)
            case _:
                await channel.leave()
                raise PeerLost(f"node {channel.peer!r} asked a relay for a link it does not serve: {purpose}")

    async def hold(self, channel: Channel) -> None:
        """Keep the link of a node that can be called over it, until it ends; a newer one replaces it."""
        channel.learn(KNOWN)
        try:
            self._check_member(channel)
            before, self._controls[channel.peer] = self._controls.get(channel.peer), channel
            if before is not None:
                await before.leave()
            message = await channel.receive()
            raise PeerLost(f"node {channel.peer!r} sent a relay a {type(message).__name__}")
        finally:
            if self._controls.get(channel.peer) is channel:
                del self._controls[channel.peer]
            await channel.leave()

    async def carry(self, channel: Channel) -> None:
        """Make a stream of a node's link, as it asks, and carry it until it ends."""
        channel.learn(KNOWN)
        try:
            self._check_member(channel)
            match first := await self._hear_first(channel):
                case Reach(node):
                    await self._reach(channel, node)
                case PickUp(token):
                    await self._answer(channel, token)
                case _:
                    raise PeerLost(f"node {channel.peer!r} sent a relay a {type(first).__name__}")
        except TimeoutError:
            logger.debug("node is gone that wanted a stream node=%s", channel.peer)
        finally:
            await channel.leave()

    def _check_member(self, channel: Channel) -> None:
        channel.check_role("worker")
        if not self.is_member(channel.peer):
            raise PeerLost(f"node {channel.peer!r} may not use this relay: it has not joined")

    async def _hear_first(self, channel: Channel) -> Message:
        """Return the first message of a link.

        Raises:
            PeerLost: if its node is gone, or its machine has too many links that are silent.
            TimeoutError: if it is silent for too long.
        """
        machine = name_machine(channel.peer)
        if self._silent.count(machine) >= MOST_OF_ONE:
            raise PeerLost(f"node {channel.peer!r} has too many links to this relay that say nothing")
        self._silent.append(machine)
        try:
            async with asyncio.timeout(FIRST_S):
                return await channel.receive()
        finally:
            self._silent.remove(machine)

    async def _reach(self, caller: Channel, node: str) -> None:
        machine = name_machine(caller.peer)
        pair = make_pair(machine, name_machine(node))
        if reason := self._refuse(machine, node, pair):
            await caller.send(NotReached(reason))
            return
        self._streams.append(machine)
        try:
            other = await self._call(caller, node)
            await self._splice(caller, other, pair)
        except TimeoutError:
            await caller.send(NotReached(f"node {node!r} does not answer"))
        finally:
            self._streams.remove(machine)

    def _refuse(self, machine: str, node: str, pair: MachinePair) -> str:
        """Return why a stream is refused; empty: it is not."""
        if node not in self._controls:
            return f"node {node!r} has no link to this relay"
        if len(self._streams) >= MOST_STREAMS or self._streams.count(machine) >= MOST_OF_ONE:
            return "it carries too many streams"
        if not self._quotas.has_room(pair):
            return "the two machines have used up their daily quota at the relay"
        return ""

    async def _call(self, caller: Channel, node: str) -> Channel:
        """Tell a node that it is called, and return the link by which it answers.

        Raises:
            PeerLost: if the caller or the node is gone.
            TimeoutError: if it does not answer.
        """
        token = secrets.token_bytes(TOKEN_BYTES)
        call = self._calls[token] = Ringing(node, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._controls[node].send(Ring(caller.peer, token))
                return await call.answered
        except BaseException:
            if call.answered.done() and not call.answered.cancelled():  # it has answered a moment too late
                await call.answered.result().leave()
            raise
        finally:
            self._calls.pop(token, None)

    async def _answer(self, channel: Channel, token: bytes) -> None:
        """Hand over the link of a node that answers a call, and wait for its end."""
        call = self._calls.get(token)
        if call is None or call.node != channel.peer or call.answered.done():
            await channel.send(NotReached("there is no such call, or it has been answered"))
            return
        del self._calls[token]
        call.answered.set_result(channel)
        await channel.ended.wait()

    async def _splice(self, one: Channel, other: Channel, pair: MachinePair) -> None:
        """Carry bytes both ways until either end is gone; both links are closed then."""
        tasks: list[asyncio.Task[None]] = []
        try:
            for channel in (one, other):
                await channel.send(Reached())
            tasks = [asyncio.create_task(self._pump(*ends, pair)) for ends in ((one, other), (other, one))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(one.leave(), other.leave())

    async def _pump(self, source: Channel, sink: Channel, pair: MachinePair) -> None:
        """Carry bytes one way until an end is gone, nothing comes for long, or the pair has used up its quota."""
        with suppress(PeerLost, TimeoutError):
            while self._quotas.has_room(pair):
                async with asyncio.timeout(IDLE_S):
                    message = await source.receive()
                if not isinstance(message, ApiData):
                    raise PeerLost(f"node {source.peer!r} sent a {type(message).__name__} in a stream")
                await self._rate.wait(len(message.data))
                self._quotas.add(pair, len(message.data))
                await sink.send(message)
