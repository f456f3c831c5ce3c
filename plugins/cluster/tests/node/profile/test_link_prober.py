from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_cluster.node.profile import link_prober as module
from parallax_cluster.node.profile.link_prober import MOST_FAILURES, LinkProber
from parallax_cluster.node.profile.service import PURPOSES
from parallax_cluster.wire.profile import Peer, Peers, check_report
from parallax_core.api import TransportPlan
from parallax_core.builtin.inprocess import InProcessLink, InProcessTransport
from parallax_core.node.worker.incoming import IncomingLinks
from tests.unit.node.cluster import open_registry, until
from tests.unit.node.membership.test_registry import make_report


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.005)
    monkeypatch.setattr(module, "AGAIN_S", 0.005)
    monkeypatch.setattr(module, "NEXT_S", 0.01)


@asynccontextmanager
async def listening(name: str) -> AsyncIterator[InProcessTransport]:
    """Run a node that answers probes."""
    transport = InProcessTransport(TransportPlan(node=name, listen="inprocess://"))
    await transport.start()
    try:
        async with IncomingLinks(transport, name, PURPOSES).accepting():
            yield transport
    finally:
        await transport.stop()


@asynccontextmanager
async def probing(address: str) -> AsyncIterator[LinkProber]:
    prober = LinkProber(InProcessTransport(TransportPlan(node="near")), "near")
    prober.begin(Peer("head", address))
    task = asyncio.create_task(prober.run())
    try:
        yield prober
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def list_peers(prober: LinkProber) -> list[str]:
    return [link.peer for link in prober.links]


async def test_links_to_the_head_and_to_other_nodes_are_measured() -> None:
    async with open_registry() as registry, listening("far") as far, probing(registry.address) as prober:
        await until(lambda: list_peers(prober) == ["head"])
        prober.meet(Peers((Peer("far", far.address), Peer("other", far.address, is_measured=False))))
        await until(lambda: list_peers(prober) == ["far", "head"])
        report = make_report(1)
        report = type(report)(backend="toy", device=report.device, links=prober.links)
        check_report(report)
        assert registry.joined == (), "a node that only measures has not joined"
        prober.meet(Peers())
        await until(lambda: list_peers(prober) == ["head"])


async def test_link_to_a_node_that_is_gone_is_forgotten_and_measured_when_it_is_back() -> None:
    async with open_registry() as registry, probing(registry.address) as prober:
        async with listening("far") as far:
            prober.meet(Peers((Peer("far", far.address),)))
            await until(lambda: list_peers(prober) == ["far", "head"])
        await until(lambda: list_peers(prober) == ["head"])
        await until(lambda: prober.unreached == ("far",))
        async with listening("far") as far:
            prober.meet(Peers((Peer("far", far.address),)))
            await until(lambda: list_peers(prober) == ["far", "head"])


async def test_node_that_is_not_reached_is_reported_as_such_until_it_is() -> None:
    async with open_registry() as registry, probing(registry.address) as prober:
        far = Peer("far", "inprocess://nobody")
        prober.meet(Peers((far,)))
        await asyncio.wait_for(prober.news.wait(), 5)
        assert (prober.unreached, list_peers(prober)) == (("far",), ["head"])
        prober.news.clear()
        async with listening("far") as transport:
            prober.meet(Peers((Peer("far", transport.address),)))
            assert not prober.unreached, "it may be reached where it is now"
            await until(lambda: list_peers(prober) == ["far", "head"])
            assert prober.news.is_set()
            prober.news.clear()
            prober.note("far", is_reached=False)
            assert set(prober.unreached) == {"far"}
            assert prober.news.is_set()
            await until(lambda: prober.unreached == ())


async def test_head_is_never_among_those_that_are_not_reached() -> None:
    async with probing("inprocess://nobody") as prober:
        await asyncio.wait_for(prober.news.wait(), 5)
        assert prober.unreached == ()
        prober.note("stranger", is_reached=False)
        assert prober.unreached == ()


class Noting(InProcessTransport):
    """Records the names of the peers to which it connects."""

    def __init__(self) -> None:
        super().__init__(TransportPlan(node="near"))
        self.tried: list[str] = []

    async def connect(self, address: str, node: str) -> InProcessLink:
        self.tried.append(node)
        return await super().connect(address, node)


async def test_new_links_come_first_and_those_that_have_failed_before_others() -> None:
    async with open_registry() as registry, listening("a") as a:
        transport = Noting()
        prober = LinkProber(transport, "near")
        prober.begin(Peer("head", registry.address))
        prober.meet(Peers((Peer("a", a.address), Peer("b", "inprocess://nobody"))))
        task = asyncio.create_task(prober.run())
        await until(lambda: len(transport.tried) > 8)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert transport.tried[:9] == ["a", "b", "head", *["b"] * (MOST_FAILURES - 1), "a", "head", "b", "a"]
