from __future__ import annotations

import asyncio
from functools import partial

import pytest

from parallax_cluster.wire.profile import DeviceReport, NodeReport
from parallax_core.api import Epoch, Frame, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.membership import registry as module
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Join, Leave, Refusal, Release
from parallax_core.wire.messages import Heartbeat, UnsupportedMessage
from tests.unit.node.cluster import call, open_registry, soon, until


def anybody(joined_node: JoinedNode) -> int:
    del joined_node
    return 1


def named(name: str, fit: int, joined_node: JoinedNode) -> int:
    return fit if joined_node.name == name else 0


def prefer(name: str, joined_node: JoinedNode) -> int:
    return 2 if joined_node.name == name else 1


def is_waiting(registry: NodeRegistry, name: str) -> bool:
    return name in {joined_node.name for joined_node in registry.waiting}


async def join(registry: NodeRegistry, *names: str) -> None:
    """Have nodes join, one after the other; they say nothing more."""
    for name in names:
        channel = await call(registry, name)
        await channel.send(Join("inprocess://x", (), "here", 0))
        await until(partial(is_waiting, registry, name))


async def test_who_joined_first_is_handed_out_first() -> None:
    async with open_registry() as registry:
        await join(registry, "a", "b")
        first, second = await registry.find(anybody), await registry.find(anybody)
        assert (first.name, second.name) == ("a", "b")
        assert registry.waiting == ()


async def test_find_waits_for_who_is_wanted() -> None:
    async with open_registry() as registry:
        finding = asyncio.create_task(registry.find(partial(named, "b", 1)))
        await join(registry, "a")
        assert not finding.done()
        channel = await call(registry, "b")
        await channel.send(Join("inprocess://x", (), "here", 0))
        assert (await soon(finding)).name == "b"
        assert [joined_node.name for joined_node in registry.waiting] == ["a"]


async def test_two_that_wait_get_whom_they_prefer() -> None:
    async with open_registry() as registry:
        first = asyncio.create_task(registry.find(partial(prefer, "a")))
        second = asyncio.create_task(registry.find(partial(prefer, "b")))
        await asyncio.sleep(0)
        for name in "ba":
            channel = await call(registry, name)
            await channel.send(Join("inprocess://x", (), "here", 0))
        assert (await soon(first)).name == "a"
        assert (await soon(second)).name == "b"


async def test_node_found_for_who_is_gone_waits_on() -> None:
    async with open_registry() as registry:
        finding = asyncio.create_task(registry.find(anybody))
        await asyncio.sleep(0)
        joined_node = JoinedNode(await call(registry, "a"), Join("inprocess://x", (), "here", 0))
        registry._admit(joined_node)
        assert not registry.waiting  # it is found, and nobody has taken it yet
        finding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finding
        assert joined_node in registry.waiting
        assert await soon(registry.find(anybody)) is joined_node


async def test_cancelled_find_takes_nobody_later() -> None:
    async with open_registry() as registry:
        finding = asyncio.create_task(registry.find(anybody))
        await asyncio.sleep(0)
        finding.cancel()
        await asyncio.gather(finding, return_exceptions=True)
        await join(registry, "a")


async def test_node_that_is_gone_waits_no_more() -> None:
    async with open_registry() as registry:
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        await until(lambda: len(registry.waiting) == 1)
        await channel.close()
        await until(lambda: not registry.waiting)


async def test_second_node_of_a_name_is_told_so() -> None:
    async with open_registry() as registry:
        await join(registry, "a")
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        refusal = await soon(channel.receive())
        assert isinstance(refusal, Refusal)
        assert refusal.message == "another node called 'a' has joined"
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert len(registry.waiting) == 1


@pytest.mark.parametrize("has_joined", [False, True])
async def test_node_that_says_anything_else_is_cut_off(caplog: pytest.LogCaptureFixture, *, has_joined: bool) -> None:
    async with open_registry() as registry:
        channel = await call(registry, "a")
        if has_joined:
            await channel.send(Join("inprocess://x", (), "here", 0))
            await until(lambda: len(registry.waiting) == 1)
        with caplog.at_level("INFO"):
            await channel.send(Heartbeat(Epoch(0), -1, 0))
            with pytest.raises(PeerLost):
                await soon(channel.receive())
        assert "sent a Heartbeat while it had nothing to do" in caplog.text or "where it was to join" in caplog.text
        assert registry.waiting == ()


async def test_stranger_that_sends_garbage_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="parallax_core")
    async with open_registry() as registry:
        for header in (b"\0", b"\1\xff\xff", b"\x01", b"\1\x96" + bytes(6)):
            link = await InProcessTransport(TransportPlan(node="ill")).connect(registry.address, "head")
            await link.send(Frame(header))
            with pytest.raises(PeerLost):
                await soon(link.receive())
        await join(registry, "a")
    assert caplog.text.count("node turned away node=ill") == 4


async def test_node_that_does_not_join_in_time_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GREETING_S", 0.05)
    async with open_registry() as registry:
        channel = await call(registry, "a")
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_stop_ends_what_waits() -> None:
    before = asyncio.all_tasks()
    async with open_registry() as registry:
        await join(registry, "a", "b")
        await call(registry, "c")
    await registry.stop()
    await until(lambda: asyncio.all_tasks() == before)


async def test_newest_report_of_each_node_is_kept_while_it_is_there() -> None:
    async with open_registry() as registry:
        channels = {name: await call(registry, name) for name in "ab"}
        for channel in channels.values():
            await channel.send(Join("inprocess://x", (), "here", 0))
        await until(lambda: len(registry.joined) == 2)
        assert [node.report for node in registry.joined] == [None, None]
        for memory in (5, 7):
            await channels["b"].send(make_report(memory))
        await until(lambda: find_memory(registry) == {"a": None, "b": 7})
        taken = await registry.find(partial(named, "b", 1))  # it reports, whoever reads what it sends
        await channels["b"].send(make_report(9))
        reading = asyncio.create_task(taken.channel.receive())
        await until(lambda: find_memory(registry) == {"a": None, "b": 9})
        await channels["b"].close()
        with pytest.raises(PeerLost):
            await soon(reading)
        assert find_memory(registry) == {"a": None}


async def test_node_that_reports_nonsense_is_cut_off_and_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    async with open_registry() as registry:
        await join(registry, "a")
        liar = await call(registry, "liar")
        await liar.send(Join("inprocess://x", (), "here", 0))
        await until(lambda: len(registry.joined) == 2)
        with caplog.at_level("INFO"):
            await liar.send(make_report(-1))
            with pytest.raises(PeerLost):
                await soon(liar.receive())
        assert "node left node=liar: node 'liar' is cut off" in caplog.text
        assert "Expected `int` >= 0" in caplog.text
        assert [node.name for node in registry.joined] == ["a"] == [node.name for node in registry.waiting]


async def test_report_before_the_join_is_dropped_and_its_sender_told() -> None:
    async with open_registry() as registry:
        channel, told = await call(registry, "a"), list[UnsupportedMessage]()
        channel.divert(UnsupportedMessage, told.append)
        await channel.send(make_report(1))
        receiving = asyncio.create_task(channel.receive())
        await until(lambda: told == [UnsupportedMessage(22)])
        await channel.send(Join("tcp://a:1", (), "here", 0))
        await until(lambda: [node.report for node in registry.joined] == [None])
        receiving.cancel()


def make_report(memory: int) -> NodeReport:
    return NodeReport(backend="toy", device=DeviceReport(memory=memory, flops=1e12, bandwidth=1e10))


def find_memory(registry: NodeRegistry) -> dict[str, int | None]:
    return {node.name: node.report.device.memory if node.report else None for node in registry.joined}


async def test_node_that_is_given_back_may_still_report_steps_and_can_be_found_again() -> None:
    async with open_registry() as registry:
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        node = await soon(registry.find(anybody))
        registry.give_back(node)
        await channel.send(Heartbeat(Epoch(0), -1, 0))
        await asyncio.sleep(0.05)
        assert registry.waiting == (node,)
        assert await soon(registry.find(anybody)) is node


async def test_node_that_leaves_is_released_when_it_is_given_back() -> None:
    async with open_registry() as registry:
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        node = await soon(registry.find(anybody))
        registry.note_leaving("a")
        registry.give_back(node)
        assert isinstance(await soon(channel.receive()), Release)
        await until(lambda: not registry.joined)
        assert registry.waiting == ()


async def test_node_that_is_given_back_does_not_displace_the_link_by_which_it_has_joined_again() -> None:
    async with open_registry() as registry:
        before = await call(registry, "a")
        await before.send(Join("inprocess://x", (), "here", 0))
        old = await soon(registry.find(anybody))
        await join(registry, "a")
        [new] = registry.waiting
        registry.give_back(old)
        await until(old.channel.ended.is_set)
        await before.close()
        await asyncio.sleep(0.05)
        assert registry.waiting == (new,)
        assert await soon(registry.find(anybody)) is new


async def test_waiting_node_that_leaves_is_released() -> None:
    async with open_registry() as registry:
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        await until(lambda: bool(registry.joined))
        await channel.send(Leave(Epoch(0)))
        assert isinstance(await soon(channel.receive()), Release)
        await until(lambda: not registry.joined)


async def test_changes_of_the_nodes_are_told() -> None:
    async with open_registry() as registry:
        assert not registry.changed.is_set()
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        await soon(registry.changed.wait())
        node = await soon(registry.find(anybody))
        registry.changed.clear()
        await channel.close()
        with pytest.raises(PeerLost):
            await soon(node.channel.receive())
        await soon(registry.changed.wait())
        assert registry.joined == ()


async def test_first_report_of_a_node_is_a_change_and_later_ones_are_not() -> None:
    async with open_registry() as registry:
        channel = await call(registry, "a")
        await channel.send(Join("inprocess://x", (), "here", 0))
        await until(lambda: bool(registry.joined))
        for memory, is_change in ((5, True), (7, False)):
            registry.changed.clear()
            await channel.send(make_report(memory))
            await until(lambda memory=memory: find_memory(registry) == {"a": memory})  # type: ignore[misc]
            assert registry.changed.is_set() == is_change


async def test_process_that_was_only_silent_is_granted_more_silence_when_it_joins_again() -> None:
    async with open_registry() as registry:
        await join(registry, "a")
        [first] = registry.joined
        assert first.patience_s == 0
        first.channel._lose(0.9)
        await until(lambda: not registry.joined)
        await join(registry, "a")
        [again] = registry.joined
        assert again.patience_s == 1.8
        await again.channel.leave()
        await until(lambda: not registry.joined)
        await join(registry, "a")
        assert registry.joined[0].patience_s == 1.8, "its link broke for another reason, and it is the same process"
