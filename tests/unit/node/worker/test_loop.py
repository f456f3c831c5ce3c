from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from parallax_core.api import (
    Draw,
    Edit,
    Epoch,
    LayerRange,
    Open,
    Row,
    SeqId,
    SequenceSpec,
    Stage,
    Tensor,
    TransportPlan,
)
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.worker.loop import AHEAD, StageChannels, StageLoop
from parallax_core.node.worker.runtime import StageRuntime
from parallax_core.node.worker.thread import StageThread
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import GREEDY, Toy
from parallax_core.wire.messages import Failure, Heartbeat, Mask, Message, Result, Step
from tests.unit.node.worker.recorder import Recorder

TOY = Toy(("full", "full", "full"))
MIDDLE = LayerRange(1, 2)
SEQ = SeqId(1)
OPEN = Open(SEQ, SequenceSpec(prompt_length=2, sampling=GREEDY))
PATIENCE_S = 20.0


@dataclass
class Bench:
    """A worker, and the other ends of its links."""

    head: Channel
    before: Channel
    after: Channel
    task: asyncio.Task[Message | None]

    async def hear(self, channel: Channel) -> Message:
        async with asyncio.timeout(PATIENCE_S):
            return await channel.receive()

    async def failure(self) -> Failure:
        message = await self.hear(self.head)
        assert isinstance(message, Failure)
        return message

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.task


@asynccontextmanager
async def working(stage: Stage, *, credit: int = 16, heartbeat_s: float | None = None) -> AsyncIterator[Bench]:
    """Have a stage in the middle of a pipeline work, with the test in place of its neighbours and its head."""
    node = InProcessTransport(TransportPlan(node="stage-1", listen="inprocess://", credit=credit))
    await node.start()
    near, far = [], []
    for name in ("head", "stage-0", "stage-2"):
        near.append(Channel(await InProcessTransport(TransportPlan(node=name)).connect(node.address, "stage-1")))
        far.append(Channel(await node.accept()))
    stage_thread, host = StageThread("test"), StageRuntime(lambda: stage, 1)
    await stage_thread.call(host.open)
    worker = StageLoop(stage_thread, host, StageChannels(far[0], far[1], far[2]), heartbeat_s)
    task = asyncio.create_task(worker.run())
    try:
        yield Bench(near[0], near[1], near[2], task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await node.stop()
        stage_thread.close()


def make_step(number: int, edits: Sequence[Edit] = (), tokens: Sequence[int] = (), epoch: int = 0) -> Step:
    """Return a step that begins where the one before, of one token each, has ended."""
    rows = (Row(SEQ, number - 1, tuple(tokens), (Draw(len(tokens) - 1),)),) if tokens else ()
    hidden = (Tensor("int64", (len(tokens), 1), bytes(8 * len(tokens))),) if tokens else ()
    return Step(Epoch(epoch), number, tuple(edits), rows, hidden)


async def test_step_goes_on_to_the_next_stage_and_its_result_to_the_head() -> None:
    async with working(TOY.open(MIDDLE)) as bench:
        await bench.before.send(make_step(1, [OPEN], [5]))
        onward, result = await bench.hear(bench.after), await bench.hear(bench.head)
        assert isinstance(onward, Step)
        assert (onward.step, onward.edits, onward.rows) == (1, (OPEN,), make_step(1, tokens=[5]).rows)
        assert len(onward.hidden) == 1
        assert isinstance(result, Result)
        assert (result.stage, result.step, result.answers) == (1, 1, ())
        assert result.free == (7,)


async def test_later_steps_are_received_while_the_stage_computes_and_only_so_many() -> None:
    stage = FaultStage(TOY.open(MIDDLE), Fault("hang", at=0))
    async with working(stage, credit=1) as bench:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for number in range(1, 12):
                await bench.before.send(make_step(number, [OPEN] if number == 1 else [], [5]))
                sent = number

        flooding = asyncio.create_task(flood())
        await asyncio.to_thread(stage.hanging.wait, PATIENCE_S)
        await asyncio.sleep(0.1)
        assert sent == 1 + AHEAD + 1 + 1  # one computed, those that wait, one about to, and one on the link
        stage.release()
        steps = [await bench.hear(bench.after) for _ in range(11)]
        assert [step.step for step in steps if isinstance(step, Step)] == list(range(1, 12))
        await flooding


async def test_step_that_has_come_is_submitted_before_the_result_of_the_one_before_is_waited_for() -> None:
    hanging = FaultStage(TOY.open(MIDDLE, steps_ahead=1), Fault("hang", at=0))
    stage = Recorder(hanging)
    async with working(stage, heartbeat_s=0.01) as bench:
        for number in (1, 2, 3):
            await bench.before.send(make_step(number, [OPEN] if number == 1 else [], [5]))
        await asyncio.to_thread(hanging.hanging.wait, PATIENCE_S)
        while not (isinstance(beat := await bench.hear(bench.head), Heartbeat) and beat.queued == 3):
            continue
        hanging.release()
        results: list[int] = []
        while len(results) < 3:
            message = await bench.hear(bench.head)
            results += [message.step] if isinstance(message, Result) else []
    assert results == [1, 2, 3]
    assert stage.calls == ["step 1", "step 2", "wait 1", "step 3", "wait 2", "wait 3"]


async def test_steps_of_an_older_epoch_are_not_begun_once_a_newer_one_is_there() -> None:
    toy = TOY.open(MIDDLE)
    stage = FaultStage(toy, Fault("hang", at=0))
    async with working(stage) as bench:
        await bench.before.send(make_step(1, [OPEN], [5]))
        await bench.before.send(make_step(2, tokens=[6]))
        await asyncio.to_thread(stage.hanging.wait, PATIENCE_S)
        await bench.before.send(make_step(1, [OPEN], [7], epoch=1))
        await asyncio.sleep(0.05)
        stage.release()
        heard = [await bench.hear(bench.after) for _ in range(2)]
        assert [(step.epoch, step.step) for step in heard if isinstance(step, Step)] == [(0, 1), (1, 1)]
        assert [batch.rows[0].tokens for batch in toy.batches] == [(5,), (7,)]


async def test_failed_step_is_told_and_the_next_epoch_goes_on() -> None:
    async with working(FaultStage(TOY.open(MIDDLE), Fault("step", at=0))) as bench:
        await bench.before.send(make_step(1, [OPEN], [5]))
        await bench.before.send(make_step(2, tokens=[6]))
        failure = await bench.failure()
        await bench.before.send(make_step(1, [OPEN], [7], epoch=1))
        assert (failure.epoch, failure.step, failure.stage, failure.lost) == (0, 1, 1, False)
        result = await bench.hear(bench.head)
        assert isinstance(result, Result)
        assert (result.epoch, result.step) == (1, 1)


async def test_gap_in_the_steps_ends_the_work() -> None:
    async with working(TOY.open(MIDDLE)) as bench:
        await bench.before.send(make_step(2))
        failure = await bench.failure()
        assert failure.lost
        assert "step 2 came where step 1 was due" in failure.message
        await bench.ended()


@pytest.mark.parametrize("who", ["before", "after"])
async def test_lost_neighbour_is_told_to_the_head(who: str) -> None:
    async with working(TOY.open(MIDDLE)) as bench:
        await (bench.before if who == "before" else bench.after).close()
        failure = await bench.failure()
        assert failure.lost
        assert f"'{'stage-0' if who == 'before' else 'stage-2'}' is closed" in failure.message
        await bench.ended()


async def test_work_ends_when_the_head_is_lost() -> None:
    async with working(TOY.open(MIDDLE)) as bench:
        await bench.head.close()
        await bench.ended()


async def test_message_that_means_nothing_here_ends_the_work() -> None:
    async with working(TOY.open(MIDDLE)) as bench:
        await bench.head.send(Mask(Epoch(0), 1, 0, Tensor("uint8", (13,), bytes(13))))
        failure = await bench.failure()
        assert failure.lost
        assert failure.message == "unexpected Mask message from node 'head'"
        await bench.ended()


async def test_heartbeats_count_what_was_done() -> None:
    async with working(TOY.open(MIDDLE), heartbeat_s=0.02) as bench:
        first = await bench.hear(bench.head)
        assert first == Heartbeat(Epoch(0), -1, 1)
        await bench.before.send(make_step(1, [OPEN], [5]))
        while not isinstance(heard := await bench.hear(bench.head), Result):
            assert isinstance(heard, Heartbeat)
        while (last := await bench.hear(bench.head)) == heard:
            pass
        assert last == Heartbeat(Epoch(0), 1, 1, steps=1, tokens=1, queued=0, sequences=1)


async def test_stage_says_nothing_unasked() -> None:
    async with working(TOY.open(MIDDLE)) as bench:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await bench.head.receive()
