from __future__ import annotations

import asyncio
from functools import partial

import pytest

from parallax_core.api import Epoch, Frame, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node import muster as module
from parallax_core.node.company import LEASE
from parallax_core.node.muster import Muster, Recruit
from parallax_core.wire.membership import Join, Refusal
from parallax_core.wire.messages import Heartbeat
from tests.unit.node.cluster import call, mustered, soon, until


def anybody(recruit: Recruit) -> int:
    del recruit
    return 1


def named(name: str, fit: int, recruit: Recruit) -> int:
    return fit if recruit.name == name else 0


def prefer(name: str, recruit: Recruit) -> int:
    return 2 if recruit.name == name else 1


def is_waiting(muster: Muster, name: str) -> bool:
    return name in {recruit.name for recruit in muster.waiting}


async def join(muster: Muster, *names: str) -> None:
    """Have nodes join, one after the other; they say nothing more."""
    for name in names:
        channel = await call(muster, name)
        await channel.send(Join("inprocess://x", (), "here", 0))
        await until(partial(is_waiting, muster, name))


async def test_who_joined_first_is_handed_out_first() -> None:
    async with mustered() as muster:
        await join(muster, "a", "b")
        first, second = await muster.find(anybody), await muster.find(anybody)
        assert (first.name, second.name) == ("a", "b")
        assert muster.waiting == ()


async def test_find_waits_for_who_is_wanted() -> None:
    async with mustered() as muster:
        finding = asyncio.create_task(muster.find(partial(named, "b", 1)))
        await join(muster, "a")
        assert not finding.done()
        channel = await call(muster, "b")
        await channel.send(Join("inprocess://x", (), "here", 0))
        assert (await soon(finding)).name == "b"
        assert [recruit.name for recruit in muster.waiting] == ["a"]


async def test_two_that_wait_get_whom_they_prefer() -> None:
    async with mustered() as muster:
        first = asyncio.create_task(muster.find(partial(prefer, "a")))
        second = asyncio.create_task(muster.find(partial(prefer, "b")))
        await asyncio.sleep(0)
        for name in "ba":
            channel = await call(muster, name)
            await channel.send(Join("inprocess://x", (), "here", 0))
        assert (await soon(first)).name == "a"
        assert (await soon(second)).name == "b"


async def test_node_found_for_who_is_gone_waits_on() -> None:
    async with mustered() as muster:
        finding = asyncio.create_task(muster.find(anybody))
        await asyncio.sleep(0)
        recruit = Recruit(await call(muster, "a"), Join("inprocess://x", (), "here", 0))
        muster._admit(recruit)
        assert not muster.waiting  # it is found, and nobody has taken it yet
        finding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finding
        assert recruit in muster.waiting
        assert await soon(muster.find(anybody)) is recruit


async def test_cancelled_find_takes_nobody_later() -> None:
    async with mustered() as muster:
        finding = asyncio.create_task(muster.find(anybody))
        await asyncio.sleep(0)
        finding.cancel()
        await asyncio.gather(finding, return_exceptions=True)
        await join(muster, "a")


async def test_node_that_is_gone_waits_no_more() -> None:
    async with mustered() as muster:
        channel = await call(muster, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        await until(lambda: len(muster.waiting) == 1)
        await channel.close()
        await until(lambda: not muster.waiting)


async def test_second_node_of_a_name_is_told_so() -> None:
    async with mustered() as muster:
        await join(muster, "a")
        channel = await call(muster, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        refusal = await soon(channel.receive())
        assert isinstance(refusal, Refusal)
        assert refusal.message == "another node called 'a' has joined"
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert len(muster.waiting) == 1


@pytest.mark.parametrize("has_joined", [False, True])
async def test_node_that_says_anything_else_is_cut_off(caplog: pytest.LogCaptureFixture, *, has_joined: bool) -> None:
    async with mustered() as muster:
        channel = await call(muster, "a")
        if has_joined:
            await channel.send(Join("inprocess://x", (), "here", 0))
            await until(lambda: len(muster.waiting) == 1)
        with caplog.at_level("INFO"):
            await channel.send(Heartbeat(LEASE, Epoch(0), -1, 0))
            with pytest.raises(PeerLost):
                await soon(channel.receive())
        assert "sent a Heartbeat while it had nothing to do" in caplog.text or "where it was to join" in caplog.text
        assert muster.waiting == ()


async def test_stranger_that_sends_garbage_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with mustered() as muster:
        for header in (b"\0", b"\1\xff\xff", b"\x01", b"\1\x96" + bytes(6)):
            link = await InProcessTransport(TransportPlan(node="ill")).connect(muster.address, "head")
            await link.send(Frame(header))
            with pytest.raises(PeerLost):
                await soon(link.receive())
        await join(muster, "a")
    assert caplog.text.count("node turned away node=ill") == 4


async def test_node_that_does_not_join_in_time_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GREETING_S", 0.05)
    async with mustered() as muster:
        channel = await call(muster, "a")
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_stop_ends_what_waits() -> None:
    before = asyncio.all_tasks()
    async with mustered() as muster:
        await join(muster, "a", "b")
        await call(muster, "c")
    await muster.stop()
    await until(lambda: asyncio.all_tasks() == before)
