"""Whatever members send a relay, in whatever order: no error escapes, and nothing is left once they are gone."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.node.relay import server as module
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.relay import PickUp, Reach, Reached, Ring
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.handshake import greet
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.wire.api_data import ApiData
from parallax_core.wire.messages import Message, Purpose
from tests.unit.node.cluster import soon, until
from tests.unit.wire.damage import KINDS
from tests.unit.wire.strategies import membership

NAMES = ("a", "b")
purposes: st.SearchStrategy[Purpose] = st.sampled_from(("relay", "stream"))
usual = st.sampled_from([Reach("a"), Reach("b"), Reach("c"), PickUp(bytes(16)), ApiData(b"x"), Reached()])
actions = st.one_of(
    st.tuples(st.just("link"), st.sampled_from(NAMES), purposes),
    st.tuples(st.just("send"), st.integers(0, 9), usual | membership),
    st.tuples(st.just("reach"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("pick up"), st.integers(0, 9), st.just("")),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just("")),
)


class Members:
    """Members of a relay that do anything."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channels: list[Channel] = []
        self._tokens: list[bytes] = []
        self._readers: list[asyncio.Task[None]] = []

    async def do(self, kind: str, which: str | int, what: object) -> None:
        if kind == "link":
            await self._link(str(which), what)  # type: ignore[arg-type]
            return
        if kind == "reach":
            await self._link(str(which), "stream")
            await self._send(self._channels[-1], Reach(str(what)))
            return
        if not self._channels:
            return
        channel = self._channels[int(which) % len(self._channels)]
        if kind == "leave":
            await channel.leave()
        message = PickUp(self._tokens[-1]) if kind == "pick up" and self._tokens else what
        if message:
            await self._send(channel, message)  # type: ignore[arg-type]

    async def end(self) -> None:
        for channel in self._channels:
            await channel.leave()
        await asyncio.gather(*self._readers)

    async def _link(self, name: str, purpose: Purpose) -> None:
        channel = Channel(await InProcessTransport(TransportPlan(node=name)).connect(self._address, "relay"), STRANGERS)
        channel.learn(KINDS.values())
        self._channels.append(channel)
        await greet(channel, name, purpose)
        self._readers.append(asyncio.create_task(self._read(channel)))

    async def _send(self, channel: Channel, message: Message) -> None:
        try:
            async with asyncio.timeout(0.01):
                await channel.send(message)
        except (PeerLost, TimeoutError):
            return

    async def _read(self, channel: Channel) -> None:
        try:
            while True:
                if isinstance(message := await channel.receive(), Ring):
                    self._tokens.append(message.token)
        except PeerLost:
            return


async def act(deeds: list[tuple[str, str | int, object]]) -> None:
    relay = InProcessTransport(TransportPlan(node="relay", listen="inprocess://"))
    await relay.start()
    server = RelayServer(RelayLimits(bytes_per_day=1000), lambda node: node in NAMES)
    incoming = IncomingLinks(relay, "relay", server.purposes)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with incoming.accepting():
        members = Members(relay.address)
        for name in NAMES:
            await members.do("link", name, "relay")
        for kind, which, what in deeds:
            await members.do(kind, which, what)
        await members.end()
        await until(lambda: server.num_streams == len(server.reachable) == 0)
        assert errors == []
    await relay.stop()


@settings(max_examples=20, deadline=None)
@given(st.lists(actions, max_size=12))
def test_members_may_send_anything(deeds: list[tuple[str, str | int, object]]) -> None:
    with patch.object(module, "ANSWER_S", 0.02):
        asyncio.run(soon(act(deeds)))
