from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from parallax_cluster.node.relay.paths import RelayPaths
from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.transport import TransportPlan
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker import peers as module
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.node.worker.peers import PeerLinker
from parallax_core.wire.membership import Hop
from tests.unit.node.cluster import until


class KeyedTransport(InProcessTransport):
    """A transport whose nodes trust whom their head introduces."""

    def __init__(self) -> None:
        super().__init__(TransportPlan(node="here", listen="inprocess://"))
        self.trusted: Mapping[str, bytes] = {}

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        self.trusted = dict(keys)


@pytest.fixture
def transport() -> KeyedTransport:
    return KeyedTransport()


@pytest.fixture
def linker(transport: KeyedTransport) -> PeerLinker:
    incoming = IncomingLinks(transport, "here", {})
    return PeerLinker(RelayPaths(transport, "here"), "here", incoming, TrustedPeers(transport))


HOP = Hop(Epoch(1), 1, before="mini/7", after="", address="", before_key=b"key")


async def test_neighbours_are_trusted_while_they_are_linked(transport: KeyedTransport, linker: PeerLinker) -> None:
    linking = asyncio.create_task(linker.link(HOP))
    await until(lambda: transport.trusted == {"mini/7": b"key"})
    linking.cancel()
    await asyncio.gather(linking, return_exceptions=True)
    assert transport.trusted == {}


async def test_neighbour_that_does_not_come_is_trusted_no_longer(
    transport: KeyedTransport, linker: PeerLinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINK_S", 0.05)
    with pytest.raises(PeerLost, match="did not connect"):
        await linker.link(HOP)
    assert transport.trusted == {}


async def test_neighbours_of_a_stage_that_has_ended_are_trusted_no_longer(
    transport: KeyedTransport, linker: PeerLinker
) -> None:
    await linker.link(Hop(Epoch(1), 0, before="", after="", address="", before_key=b"", after_key=b""))
    TrustedPeers(transport).trust("neighbour", {"mini/7": b"key"})
    linker.forget()
    assert transport.trusted == {}
