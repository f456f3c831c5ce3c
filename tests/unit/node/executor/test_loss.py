from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from parallax_core.api import Epoch, Failure, Frame, Link, PeerLost, StageLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.executor import loss as module
from parallax_core.node.executor.loss import LossFinder
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.codec import VERSION_BYTE
from parallax_core.wire.membership import Join
from tests.unit.node.cluster import (
    TOY,
    Node,
    answer,
    check_answer,
    joined,
    make_executor,
    make_roles,
    open_registry,
    running,
    soon,
    until,
)

NAMES = ("attic", "cellar", "kitchen")
INVALID = Frame(VERSION_BYTE + b"\xff")


@dataclass
class Bench:
    """The ends of three stages' links to a head that has lost one of them."""

    finder: LossFinder
    far: list[Channel]
    links: list[Link]
    """Those that `far` speaks over."""

    async def report(self, stage: int, message: str) -> None:
        """Report a loss, as a stage does whose link to another node has ended."""
        failure = Failure(Epoch(0), 0, stage, message, lost=True, at_fault=False, cause="link")
        await self.far[stage].send(failure)

    async def end(self, stage: int) -> None:
        """End a stage, once the finder listens."""
        for _ in range(10):
            await asyncio.sleep(0)
        await self.far[stage].close()


@asynccontextmanager
async def losing() -> AsyncIterator[Bench]:
    transports = [InProcessTransport(TransportPlan(node=name, listen="inprocess://")) for name in NAMES]
    nodes, far, links = [], [], list[Link]()
    for transport in transports:
        await transport.start()
        near = await InProcessTransport(TransportPlan(node="head")).connect(transport.address, transport.plan.node)
        nodes.append(JoinedNode(Channel(near), Join(transport.address, (), "here", 0)))
        links.append(await transport.accept())
        far.append(Channel(links[-1]))
    yield Bench(LossFinder(make_roles(), nodes, None), far, links)
    for transport in transports:
        await transport.stop()


@pytest.fixture
def reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every node that is lost be told in the same words, which say nothing."""
    begin = PeerLost.__init__

    def say_nothing(self: PeerLost, message: str, *args: object, **fields: object) -> None:
        begin(self, "?", *args, **fields)  # type: ignore[arg-type]
        assert message

    monkeypatch.setattr(PeerLost, "__init__", say_nothing)


async def test_node_that_another_has_lost_is_waited_for_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISS_S", 20.0)
    async with losing() as bench:
        explaining = asyncio.create_task(bench.finder.explain(StageLost("?", cause="link", peer="kitchen")))
        await bench.end(2)
        found = await soon(explaining)
    assert found.message.startswith("stage 2 of 3, on node 'kitchen', is lost: ")
    assert found.cause == "link"


@pytest.mark.parametrize("peer", ["", "head"])
async def test_loss_that_names_no_stage_is_not_waited_for_any_longer(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.01)
    monkeypatch.setattr(module, "MISS_S", 20.0)
    message = "the link from node 'attic' to 'cellar' is gone"
    async with losing() as bench:
        loss = StageLost(message, cause="link", peer=peer)
        async with asyncio.timeout(10):
            assert await bench.finder.explain(loss) is loss


async def test_node_whose_frame_is_invalid_is_the_root_cause_whatever_is_said(
    monkeypatch: pytest.MonkeyPatch, reworded: None
) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.01)
    async with losing() as bench:
        await bench.report(0, "gone")
        await bench.links[1].send(INVALID)
        await bench.far[2].close()
        found = await soon(bench.finder.explain(StageLost("?", cause="link")))
    assert (found.message, found.cause) == ("stage 1 of 3, on node 'cellar', is lost: ?", "invalid_frame")


async def test_loss_by_an_invalid_frame_needs_no_explanation() -> None:
    async with losing() as bench:
        loss = StageLost("?", cause="invalid_frame")
        assert await bench.finder.explain(loss) is loss


async def test_stage_that_is_known_is_named_with_its_node() -> None:
    async with losing() as bench:
        loss = StageLost("words of any kind", "a hint", 1)
        loss.reason = "it died"
        found = await bench.finder.explain(loss)
    assert (found.message, found.hint) == ("stage 1 of 3, on node 'cellar', is lost: it died", "a hint")


async def test_all_that_stages_report_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.01)
    async with losing() as bench:
        await bench.report(0, "gone")
        await bench.report(2, "broken")
        loss = StageLost("stage 0 of 3 is lost: gone", cause="link")
        loss.reason = "gone"
        found = await soon(bench.finder.explain(loss))
    assert found.message == "stage 0 of 3 is lost: gone; broken"


@pytest.mark.parametrize("lost", range(3))
async def test_recovery_is_the_same_whatever_the_messages_say(lost: int, reworded: None) -> None:
    nodes, reasons = [Node(name) for name in NAMES], list[str]()
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry), reasons.append) as engine,
    ):
        asking = asyncio.create_task(answer(engine, (1, 2), 200))
        await until(lambda: bool(engine.stats()[0].output_tokens))
        await nodes[lost].kill()
        await until(lambda: bool(reasons))
        assert f"stage {lost} of 3, on node {NAMES[lost]!r}, is lost: ?" in reasons[0]
        spare = Node("spare")
        await spare.join(registry.address)
        assert (await asking)[0] == TOY.continuation((1, 2), 200)
        await check_answer(engine)
        assert [location.restarts for location in engine.locations()] == [int(stage == lost) for stage in range(3)]
        await spare.kill()
