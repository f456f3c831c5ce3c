"""A link over a relay, whose own links are those of lattica."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import RelayPlace, Relays
from parallax_core.api import Frame
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.incoming import IncomingLinks
from tests.support.lattica_nodes import LOOPBACK, plan_node, started
from tests.support.zmq_nodes import eventually

NOWHERE = "lattica://127.0.0.1:1/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


async def test_frames_cross_a_relay_between_nodes_that_cannot_reach_each_other() -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(40):
        near, far, middle = [
            await stack.enter_async_context(started(plan_node(name, LOOPBACK))) for name in ("near", "far", "middle")
        ]
        relay = RelayServer(RelayLimits(), lambda _: True)
        incoming = IncomingLinks(middle, "middle", relay.purposes)
        await stack.enter_async_context(incoming.accepting())
        paths = [RelayPaths(near, "near"), RelayPaths(far, "far")]
        for each in paths:
            await stack.enter_async_context(each.joined(Peer("head", NOWHERE)))
            each.meet(Relays((RelayPlace("middle", middle.address),)), TrustedPeers(each.transport))
        await eventually(lambda: all(each.relays for each in paths), 20)
        there, path = await asyncio.gather(far.accept(), paths[0].reach(NOWHERE, "far"))
        assert (path.relay, path.link.peer, there.peer) == ("middle", "far", "near")
        for size in (1, 100_000, 1_000_000):
            await path.link.send(Frame(b"there", (bytes(size),)))
            assert bytes((await there.receive()).buffers[0]) == bytes(size)
            await there.send(Frame(b"back", (bytes(size),)))
            assert (await path.link.receive()).header == b"back"
        await path.link.close()
        await eventually(lambda: relay.num_streams == 0)
