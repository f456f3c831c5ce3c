from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from parallax_core.api import (
    Epoch,
    LayerRange,
    Open,
    ParallaxError,
    PeerLost,
    Progress,
    Row,
    SeqId,
    SequenceSpec,
    Stage,
    Tensor,
    TransportPlan,
)
from parallax_core.base.errors import StageHung
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.placement import StageLease
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet, welcome
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.worker import head_link
from parallax_core.node.worker import loaded_stage as module
from parallax_core.node.worker import peers as neighbour
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.node import open_toy
from parallax_core.testing.toy import GREEDY
from parallax_core.wire.membership import Assign, Hop, Join, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import Failure, Heartbeat, Message, Result, Step
from tests.unit.node.cluster import MODEL, Node, soon, until
from tests.unit.wire.damage import KINDS

LEASED = StageLease(0, LayerRange(0, 3), 0.5)
MIDDLE = StageAssignment(stage=1, layers=LayerRange(1, 2), model=MODEL, heartbeat_s=10.0)


@dataclass
class Bench:
    """A node, and the head it has joined, which is the test."""

    node: Node
    head: InProcessTransport
    channel: Channel
    join: Join

    async def say(self, message: Message) -> None:
        await self.channel.send(message)

    async def hear(self) -> Message:
        """Return what the node says next, its progress apart."""
        while isinstance(message := await soon(self.channel.receive()), Loading):
            pass
        return message

    async def again(self) -> None:
        """Wait until the node joins again."""
        self.channel = Channel(await soon(self.head.accept()))
        self.channel.learn(KINDS.values())
        await soon(welcome(self.channel, "head"))
        join = await soon(self.channel.receive())
        assert isinstance(join, Join)
        self.join = join

    async def call(self, name: str) -> Channel:
        """Make a link to the node as the stage before."""
        link = await InProcessTransport(TransportPlan(node=name)).connect(self.node.transport.address, self.node.name)
        channel = Channel(link)
        channel.learn(KINDS.values())
        await soon(greet(channel, name))
        return channel


@asynccontextmanager
async def joined(max_context: int | None = None) -> AsyncIterator[Bench]:
    head = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    await head.start()
    node = Node("attic")
    node.max_context = max_context
    await node.join(head.address)
    bench = Bench(node, head, None, None)  # type: ignore[arg-type]
    await bench.again()
    try:
        yield bench
    finally:
        await node.kill()
        await head.stop()


@asynccontextmanager
async def next_stage() -> AsyncIterator[InProcessTransport]:
    """Listen as the stage after."""
    after = InProcessTransport(TransportPlan(node="after", listen="inprocess://"))
    await after.start()
    yield after
    await after.stop()


def hop(after: InProcessTransport, epoch: int = 1) -> Hop:
    return Hop(Epoch(epoch), 1, "before", "after", after.address)


async def link(bench: Bench, after: InProcessTransport, epoch: int = 1) -> tuple[Channel, Channel]:
    """Have the node be the middle stage, with links to both sides."""
    await bench.say(MIDDLE.assign(Epoch(epoch)))
    assert isinstance(await bench.hear(), Ready)
    await bench.say(hop(after, epoch))
    before, onward = await asyncio.gather(bench.call("before"), soon(await_node(after)))
    assert await bench.hear() == Linked(Epoch(epoch), 1)
    return before, onward


def make_step(number: int) -> Step:
    """Return a step with a row."""
    seq = SeqId(number)
    edits = (Open(seq, SequenceSpec(prompt_length=1, sampling=GREEDY)),)
    return Step(Epoch(0), number, edits, (Row(seq, 0, (1,)),), (Tensor("int64", (1, 1), bytes(8)),))


async def await_node(after: InProcessTransport) -> Channel:
    """Return a link of the node, but none that has ended."""
    while True:
        channel = Channel(await after.accept())
        channel.learn(KINDS.values())
        with contextlib.suppress(PeerLost):
            await welcome(channel, "after")
            return channel


async def test_node_says_what_it_is_and_becomes_a_stage() -> None:
    async with joined() as bench, next_stage() as after:
        assert (bench.join.backends, bench.join.model) == (("toy",), "")
        before, onward = await link(bench, after)
        await before.send(Step(Epoch(0), 1))
        assert isinstance(await soon(onward.receive()), Step)
        assert isinstance(await bench.hear(), Result)


async def test_stage_that_is_given_again_keeps_its_weights_and_forgets_its_epochs() -> None:
    async with joined() as bench, next_stage() as after:
        before, _ = await link(bench, after)
        await before.send(Step(Epoch(7), 1))
        assert isinstance(await bench.hear(), Result)
        before, onward = await link(bench, after, epoch=2)
        await before.send(Step(Epoch(0), 1))
        assert isinstance(await soon(onward.receive()), Step)
        assert len(bench.node.loads) == 1


async def test_other_layers_take_the_place_of_those_there_were() -> None:
    async with joined() as bench:
        for epoch, layers in enumerate((LayerRange(0, 1), LayerRange(0, 2))):
            role = StageAssignment(stage=0, layers=layers, model=MODEL)
            await bench.say(role.assign(Epoch(epoch)))
            ready = await bench.hear()
            assert isinstance(ready, Ready)
            assert ready.info.layers == layers
        assert len(bench.node.loads) == 2


async def test_head_is_told_the_limit_of_the_context() -> None:
    async with joined(max_context=5) as bench:
        for role in (MIDDLE, StageAssignment(stage=0, layers=LayerRange(0, 3), model=MODEL, lease=LEASED)):
            await bench.say(role.assign(Epoch(1)))
            ready = await bench.hear()
            assert isinstance(ready, Ready)
            assert ready.info.context_length == 5


async def test_same_layers_as_another_stage_are_not_loaded_again() -> None:
    async with joined() as bench:
        for stage in (0, 2):
            role = StageAssignment(stage=stage, layers=LayerRange(0, 3), model=MODEL)
            await bench.say(role.assign(Epoch(stage)))
            ready = await bench.hear()
            assert isinstance(ready, Ready)
            assert ready.stage == stage
            await bench.say(Hop(Epoch(stage), stage, "", "", ""))
            assert isinstance(await bench.hear(), Linked)
            await bench.say(Step(Epoch(0), 1))
            result = await bench.hear()
            assert isinstance(result, Result)
            assert result.stage == stage
        assert len(bench.node.loads) == 1


async def test_steps_that_come_after_the_end_of_a_stage_are_left_aside() -> None:
    """The head sends them until it knows."""
    async with joined() as bench, next_stage() as after:
        _, onward = await link(bench, after)
        await onward.close()
        assert isinstance(await bench.hear(), Failure)
        for step in range(1, 4):
            await bench.say(Step(Epoch(0), step))
        await link(bench, after, epoch=2)
        assert len(bench.node.loads) == 1


async def test_head_may_begin_anew_while_neighbours_are_waited_for() -> None:
    async with joined() as bench, next_stage() as after:
        await bench.say(MIDDLE.assign(Epoch(1)))
        assert isinstance(await bench.hear(), Ready)
        await bench.say(hop(after))
        stale = await soon(after.accept())  # a link that is never used
        await link(bench, after, epoch=2)
        assert len((await soon(stale.receive())).header) > 1  # the greeting; then nothing
        with pytest.raises(PeerLost):
            await soon(stale.receive())


async def test_link_of_earlier_days_is_passed_over() -> None:
    async with joined() as bench, next_stage() as after:
        link_ = await InProcessTransport(TransportPlan(node="before")).connect(bench.node.transport.address, "attic")
        await link_.close()
        stranger = asyncio.create_task(bench.call("else"))
        before, onward = await link(bench, after)
        with pytest.raises(PeerLost):
            await soon(stranger)
        await before.send(Step(Epoch(0), 1))
        assert isinstance(await soon(onward.receive()), Step)


async def test_neighbours_that_do_not_come_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour, "LINK_S", 0.05)
    async with joined() as bench, next_stage() as after:
        await bench.say(MIDDLE.assign(Epoch(1)))
        assert isinstance(await bench.hear(), Ready)
        await bench.say(hop(after))
        refusal = await bench.hear()
        assert isinstance(refusal, Refusal)
        assert refusal.message == "stage 1 has no links: its neighbours did not connect within 0.05 s"
        assert refusal.unreached == "", "it has reached the next stage"
        monkeypatch.setattr(neighbour, "LINK_S", 5.0)
        await link(bench, after, epoch=2)


async def test_neighbour_that_is_not_there_is_a_refusal_at_once() -> None:
    async with joined() as bench, next_stage() as after:
        await bench.say(MIDDLE.assign(Epoch(1)))
        assert isinstance(await bench.hear(), Ready)
        await bench.say(Hop(Epoch(1), 1, "before", "after", "inprocess://nobody"))
        refusal = await bench.hear()
        assert isinstance(refusal, Refusal)
        assert "no node listens at inprocess://nobody" in refusal.message
        assert refusal.unreached == "after"
        await link(bench, after, epoch=2)  # what waited for the stage before waits no more


async def test_node_whose_stage_is_lost_leaves_its_place_to_a_new_process() -> None:
    stages: list[FaultStage] = []

    def open_stage(assign: Assign, progress: Progress) -> Stage:
        stages.append(FaultStage(open_toy(assign, progress), *[Fault("die", at=0)] * (not stages)))
        return stages[-1]

    async with joined() as bench, next_stage() as after:
        bench.node.open = open_stage
        before, _ = await link(bench, after)
        await before.send(make_step(1))
        failure = await bench.hear()
        assert isinstance(failure, Failure)
        assert (failure.lost, failure.at_fault) == (True, True)
        await bench.again()
        assert bench.join.model == ""
        [end] = bench.node.ends
        assert end.message == "stage 1 is lost: the stage died on purpose"
        assert "start this node again" in end.hint
        await link(bench, after)
        assert len(stages) == 2


async def test_stage_that_loses_a_neighbour_is_not_at_fault() -> None:
    async with joined() as bench, next_stage() as after:
        before, _ = await link(bench, after)
        await before.close()
        failure = await bench.hear()
        assert isinstance(failure, Failure)
        assert (failure.lost, failure.at_fault) == (True, False)
        assert (failure.cause, failure.peer) == ("link", "before")


async def test_stage_says_that_a_neighbour_sent_an_invalid_frame() -> None:
    async with joined() as bench, next_stage() as after:
        before, _ = await link(bench, after)
        await before.send(Result(Epoch(0), 1, 0, free=(-1,)))
        failure = await bench.hear()
        assert isinstance(failure, Failure)
        assert (failure.at_fault, failure.cause, failure.peer) == (False, "invalid_frame", "before")


async def test_node_whose_step_hangs_leaves_its_place_when_it_is_wanted_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RESET_S", 0.1)
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    stages: list[FaultStage] = []

    def open_stage(assign: Assign, progress: Progress) -> Stage:
        stages.append(FaultStage(open_toy(assign, progress), *[Fault("hang", at=0)] * (not stages)))
        return stages[-1]

    async with joined() as bench, next_stage() as after:
        bench.node.open = open_stage
        before, _ = await link(bench, after)
        await before.send(make_step(1))
        await until(stages[0].hanging.is_set)
        await bench.say(MIDDLE.assign(Epoch(2)))
        await bench.again()
        [end] = bench.node.ends
        assert isinstance(end, StageHung)
        assert "self._released.wait()" in caplog.text, "the log says where it hangs"
        stages[0].release()


async def test_what_a_load_that_failed_has_taken_is_free_again_while_the_node_waits() -> None:
    class Weights:
        """Stands for gigabytes."""

    taken: list[weakref.ref[Weights]] = []

    def fail(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        weights = Weights()
        taken.append(weakref.ref(weights))
        raise ParallaxError("there is too little memory")

    async with joined() as bench:
        bench.node.open = fail
        await bench.say(MIDDLE.assign(Epoch(1)))
        assert isinstance(await bench.hear(), Refusal)
        await until(lambda: taken[0]() is None)


async def test_node_that_joins_again_says_what_it_still_has() -> None:
    async with joined() as bench, next_stage() as after:
        await link(bench, after)
        await bench.channel.close()
        await bench.again()
        assert (bench.join.model, bench.join.start, bench.join.stop) == (MODEL, 1, 2)
        await link(bench, after)
        assert len(bench.node.loads) == 1


async def test_node_that_is_let_go_of_has_nothing_any_more() -> None:
    closed: list[int] = []

    def open_stage(assign: Assign, progress: Progress) -> Stage:
        stage = open_toy(assign, progress)
        setattr(stage, "close", lambda: closed.append(assign.stage))  # noqa: B010 -- of this one alone
        return stage

    async with joined() as bench:
        bench.node.open = open_stage
        await bench.say(MIDDLE.assign(Epoch(1)))
        assert isinstance(await bench.hear(), Ready)
        await bench.say(Release(Epoch(1)))
        await until(lambda: closed == [1])
        await bench.channel.close()
        await bench.again()
        assert bench.join.model == ""


async def test_head_that_does_not_greet_is_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_link, "GREETING_S", 0.02)
    head = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    await head.start()
    node = await Node("attic").join(head.address)
    await until(lambda: bool(node.losses))
    assert "did not greet within 0.02 s" in node.losses[0].message
    await node.kill()
    await head.stop()


async def test_node_that_is_turned_away_knows_why() -> None:
    async with joined() as bench:
        await bench.say(Refusal(Epoch(0), 0, "another node has that name", "give it another"))
        await until(lambda: bool(bench.node.losses))
        [loss] = bench.node.losses
        assert loss.message == "node 'head' turned this one away: another node has that name"
        assert loss.hint == "give it another"


async def test_head_that_speaks_out_of_turn_is_left() -> None:
    async with joined() as bench:
        await bench.say(Heartbeat(Epoch(0), -1, 0))
        await until(lambda: bool(bench.node.losses))
        assert "sent a Heartbeat, which is unexpected here" in bench.node.losses[0].message
