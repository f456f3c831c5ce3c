from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_cluster.node.profile.link_probe import probe_link
from parallax_cluster.node.profile.service import PURPOSES
from parallax_core.api import Frame, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import answer_greeting, greet
from parallax_core.node.worker import incoming as module
from parallax_core.node.worker.incoming import IncomingLinks
from tests.unit.node.cluster import soon, until


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[IncomingLinks, str]]:
    """Yield the incoming links of the node ``far``, and its address."""
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    links = IncomingLinks(far, "far", PURPOSES)
    try:
        async with links.accepting():
            yield links, far.address
    finally:
        await far.stop()


async def connect(address: str, node: str) -> Channel:
    return Channel(await InProcessTransport(TransportPlan(node=node)).connect(address, "far"))


async def test_link_of_a_neighbour_waits_until_it_is_needed() -> None:
    async with listening() as (links, address):
        channel = await connect(address, "before")
        greeting = asyncio.create_task(greet(channel, "before"))
        found, hello = await soon(links.take())
        assert (found.peer, greeting.done()) == ("before", False)
        await answer_greeting(found, hello, "far")
        assert (await soon(greeting)).node == "far"


async def test_link_that_measures_is_answered_and_not_taken() -> None:
    async with listening() as (links, address):
        channel = await connect(address, "near")
        await soon(greet(channel, "near", "probe"))
        assert (await soon(probe_link(channel))).round_trip_s > 0
        await channel.close()
        assert not links.waiting


async def test_newest_link_of_a_node_counts() -> None:
    async with listening() as (links, address):
        first, second = await connect(address, "before"), await connect(address, "before")
        old = asyncio.create_task(greet(first, "before"))
        await until(lambda: len(links.waiting) == 1)
        new = asyncio.create_task(greet(second, "before"))
        with pytest.raises(PeerLost):
            await soon(old)
        found, hello = await soon(links.take())
        await answer_greeting(found, hello, "far")
        await soon(new)


async def test_links_that_nobody_needs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINKS", 2)
    async with listening() as (links, address):
        greetings = []
        for name in "abc":
            greetings.append(asyncio.create_task(greet(await connect(address, name), name)))
            await until(lambda name=name: name in links.waiting)  # type: ignore[misc]
        with pytest.raises(PeerLost):
            await soon(greetings[0])
        assert sorted(links.waiting) == ["b", "c"]
        for greeting in greetings:
            greeting.cancel()
        await asyncio.gather(*greetings, return_exceptions=True)


@asynccontextmanager
async def greeting_as(links: IncomingLinks, address: str, *names: str) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Have nodes greet one after the other, and wait to be taken."""
    greetings: list[asyncio.Task[object]] = []
    try:
        for name in names:
            greetings.append(asyncio.create_task(greet(await connect(address, name), name)))
            await until(lambda name=name: name in links.waiting)  # type: ignore[misc]
        yield greetings
    finally:
        for greeting in greetings:
            greeting.cancel()
        await asyncio.gather(*greetings, return_exceptions=True)


async def test_machine_with_many_names_displaces_its_own_links_alone() -> None:
    many = [f"m/{number}" for number in range(16)]
    async with listening() as (links, address), greeting_as(links, address, "before/7", *many) as greetings:
        assert not greetings[0].done()
        assert links.waiting == ["before/7", *many[-module.MOST_OF_ONE :]]
        found, _ = await soon(links.take())
        assert found.peer == "before/7"


async def test_of_too_many_machines_the_one_with_most_links_loses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINKS", 5)
    async with listening() as (links, address):
        names = ("before/7", "m/1", "m/2", "n/1", "o/1", "p/1")
        async with greeting_as(links, address, *names):
            assert links.waiting == ["before/7", "m/2", "n/1", "o/1", "p/1"]


async def test_machine_whose_nodes_say_nothing_keeps_no_other_out() -> None:
    async with listening() as (_, address):
        silent = [await connect(address, f"m/{number}") for number in range(16)]
        waiting = [asyncio.create_task(each.receive()) for each in silent]
        await until(lambda: sum(not each.done() for each in waiting) == module.MOST_OF_ONE)
        channel = await connect(address, "near")
        await soon(greet(channel, "near", "probe"))
        assert (await soon(probe_link(channel))).round_trip_s > 0
        for each in silent:
            await each.leave()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("header", [b"\0", b"\6\xff\xff", b""])
async def test_stranger_that_sends_garbage_is_hung_up_on(header: bytes) -> None:
    async with listening() as (links, address):
        link = await InProcessTransport(TransportPlan(node="ill")).connect(address, "far")
        if header:
            await link.send(Frame(header))
        else:
            await link.close()
        with pytest.raises(PeerLost):
            await soon(link.receive())
        channel = await connect(address, "near")
        await soon(greet(channel, "near", "probe"))
        assert not links.waiting


async def test_links_that_nobody_has_taken_are_left_at_the_end() -> None:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    links = IncomingLinks(far, "far", PURPOSES)
    async with links.accepting():
        channel = await connect(far.address, "before")
        greeting = asyncio.create_task(greet(channel, "before"))
        await until(lambda: len(links.waiting) == 1)
    with pytest.raises(PeerLost):
        await soon(greeting)
    assert not links.waiting
    await far.stop()
