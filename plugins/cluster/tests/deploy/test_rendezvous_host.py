from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.deploy.joining import Joiner
from parallax_cluster.membership.join_code import read_code
from parallax_cluster.node.relay.host import RelayHost
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.wire.profile import Peer
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import HEAD
from parallax_core.config.config import Config
from parallax_core.deploy.node_transport import make_transport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.plugins.host import PluginHost
from parallax_core.wire.membership import Join, Refusal
from tests.unit.deploy.local_rendezvous import at_home, hosting
from tests.unit.node.cluster import soon
from tests.unit.wire.damage import KINDS


async def test_rendezvous_has_no_work_for_a_machine_that_joins(tmp_path: Path) -> None:
    plugins = PluginHost.discover(Config())
    async with hosting(tmp_path / "host") as (address, code):
        with at_home(tmp_path / "one"):
            joiner = Joiner(plugins, looks_around=False)
            joined = await soon(joiner.enrol(read_code(code)))
            offer = plugins.transports().get("zmq")
            heads = joiner.find_key(joined)
            transport = offer.load(offer.spec.factory)(TransportPlan(node=f"{joined.machine}/1", heads=heads))
            await transport.start()
            channel = Channel(await soon(transport.connect(address, HEAD)))
            channel.learn(KINDS.values())
            await soon(greet(channel, f"{joined.machine}/1"))
            await channel.send(Join("tcp://127.0.0.1:1", (), "here", 0))
            answer = await soon(channel.receive())
            assert isinstance(answer, Refusal)
            assert "this is a rendezvous" in answer.message
            with pytest.raises(PeerLost):
                await soon(channel.receive())
            await transport.stop()


async def test_relay_that_is_offered_to_a_rendezvous_ends_and_says_why(tmp_path: Path) -> None:
    plugins = PluginHost.discover(Config())
    async with hosting(tmp_path / "host") as (address, code):
        with at_home(tmp_path / "one"):
            joiner = Joiner(plugins, looks_around=False)
            joined = await soon(joiner.enrol(read_code(code)))
            offer, node = plugins.transports().get("zmq"), f"{joined.machine}/1"
            transport = make_transport(offer, node, "tcp://127.0.0.1:0", joiner.find_key(joined), None)
            await transport.start()
            host = RelayHost(transport, node, RelayOffer(RelayLimits()))
            with pytest.raises(ParallaxError, match="this is a rendezvous"):
                await soon(host.serve(Peer(HEAD, address)))
            await transport.stop()


async def test_stranger_is_not_let_in(tmp_path: Path) -> None:
    plugins = PluginHost.discover(Config())
    async with hosting(tmp_path / "host") as (address, _):
        with at_home(tmp_path / "stranger"):
            offer = plugins.transports().get("zmq")
            offer.load(offer.spec.joining)().prepare("x")  # type: ignore[arg-type]
            transport = offer.load(offer.spec.factory)(TransportPlan(node="x/1", heads={HEAD: b"k" * 32}))
            await transport.start()
            with pytest.raises(PeerLost):
                await soon(transport.connect(address, HEAD))
            await transport.stop()


async def test_address_of_this_machine_only_and_a_missing_transport_are_told(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match="cannot reach ipc://"):
        async with hosting(tmp_path, listen=f"ipc://{tmp_path}/socket"):
            pass
    with pytest.raises(ParallaxError, match="none-such"):
        async with hosting(tmp_path, transport="none-such"):
            pass


async def test_no_code_is_made_if_none_is_wanted(tmp_path: Path) -> None:
    async with hosting(tmp_path, code_hours=0.0) as (address, code):
        assert (address.startswith("tcp://127.0.0.1:"), code) == (True, "")
