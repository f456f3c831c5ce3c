"""The head's side of a pipeline, with the test in place of the stages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from parallax_core.api import (
    Delta,
    Draw,
    Drawn,
    Epoch,
    LayerRange,
    Request,
    RequestId,
    Row,
    Sampling,
    TransportPlan,
)
from parallax_core.base.errors import StageLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.node.channel import Channel
from parallax_core.node.pipeline.driver import PipelineDriver
from parallax_core.testing.toy import Toy
from parallax_core.wire.messages import Failure, Heartbeat, Message, Result, Step

TOY = Toy(("full", "full"))
INFOS = [replace(TOY.open(LayerRange(layer, layer + 1)).info, max_batch_tokens=4) for layer in range(2)]
LAST = 1
PATIENCE_S = 20.0


@dataclass
class Bench:
    """A head that is driven, and the ends of its links at the stages."""

    head: Head
    driver: PipelineDriver
    stages: list[Channel]
    task: asyncio.Task[None]
    deltas: list[tuple[RequestId, Delta]] = field(default_factory=list)

    def ask(self, name: str, prompt: tuple[int, ...], max_tokens: int = 2, timeout_s: float | None = None) -> None:
        request = Request(
            id=RequestId(name),
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=Sampling(temperature=0),
            timeout_s=timeout_s,
        )
        self.head.accept(request, asyncio.get_running_loop().time())
        self.driver.wake()

    async def step(self) -> Step:
        async with asyncio.timeout(PATIENCE_S):
            step = await self.stages[0].receive()
        assert isinstance(step, Step)
        return step

    async def finish(self, step: Step, token: int = 1) -> None:
        """Answer as both stages would."""
        await self.stages[0].send(Result(step.epoch, step.step, 0))
        await self.stages[LAST].send(answer(step, token))

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def lost(self) -> str:
        return (await self.loss()).message

    async def loss(self) -> StageLost:
        with pytest.raises(StageLost) as caught:
            async with asyncio.timeout(PATIENCE_S):
                await self.task
        return caught.value


def answer(step: Step, token: int = 1) -> Result:
    answers = tuple(Drawn((token,)) for row in step.rows for output in row.outputs if isinstance(output, Draw))
    return Result(step.epoch, step.step, LAST, answers)


@asynccontextmanager
async def driving() -> AsyncIterator[Bench]:
    near, far, nodes = [], [], []
    for stage in range(len(INFOS)):
        node = InProcessTransport(TransportPlan(node=f"stage-{stage}", listen="inprocess://"))
        await node.start()
        nodes.append(node)
        near.append(
            Channel(await InProcessTransport(TransportPlan(node="head")).connect(node.address, f"stage-{stage}"))
        )
        far.append(Channel(await node.accept()))
    deltas: list[tuple[RequestId, Delta]] = []
    head = Head(INFOS, lambda tokens: "." * len(tokens))
    driver = PipelineDriver(head, near, deltas.extend)
    bench = Bench(head, driver, far, asyncio.create_task(driver.run()), deltas)
    try:
        yield bench
    finally:
        bench.task.cancel()
        await asyncio.gather(bench.task, return_exceptions=True)
        for node in nodes:
            await node.stop()


async def test_steps_are_sent_ahead_of_their_results() -> None:
    async with driving() as bench:
        bench.ask("long", tuple(range(20)))
        steps = [await bench.step() for _ in range(3)]
        assert [(step.epoch, step.step) for step in steps] == [(0, n) for n in (1, 2, 3)]
        assert [len(step.rows[0].tokens) for step in steps] == [4, 4, 4]


async def test_deltas_come_with_the_result_of_the_last_stage() -> None:
    async with driving() as bench:
        bench.ask("a", (5,))
        first = await bench.step()
        await bench.stages[0].send(Result(first.epoch, first.step, 0))
        await bench.settle()
        assert bench.deltas == []
        await bench.stages[LAST].send(answer(first, token=9))
        await bench.step()
        assert [(name, delta.tokens) for name, delta in bench.deltas] == [("a", (9,))]


async def test_observer_is_told_what_each_stage_took_for_which_rows() -> None:
    noted: list[tuple[int, int, float]] = []

    class Observer:
        def note_step(self, stage: int, rows: Sequence[Row], seconds: float) -> None:
            noted.append((stage, sum(len(row.tokens) for row in rows), seconds))

    async with driving() as bench:
        bench.driver.observer = Observer()
        bench.ask("a", (5, 6, 7))
        first = await bench.step()
        await bench.stages[LAST].send(msgspec.structs.replace(answer(first), seconds=0.5))
        await bench.stages[0].send(Result(first.epoch, first.step, 0, seconds=0.25))
        await bench.step()
        while len(noted) < len(INFOS):  # noqa: ASYNC110 -- links have no order among them
            await asyncio.sleep(0)
        assert sorted(noted) == [(0, 3, 0.25), (LAST, 3, 0.5)]


async def test_later_stage_may_be_heard_first() -> None:
    async with driving() as bench:
        bench.ask("a", (5,))
        first = await bench.step()
        await bench.stages[LAST].send(answer(first))
        second = await bench.step()
        await bench.stages[0].send(Result(first.epoch, first.step, 0, free=(7,)))
        await bench.finish(second)
        await bench.settle()
        assert bench.deltas[-1][1].finish is not None
        assert not bench.task.done()


async def test_head_plans_when_answers_come_and_not_for_each_stage_that_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with driving() as bench:
        bench.ask("one", (5,), max_tokens=9)
        step = await bench.step()
        await bench.settle()
        plans, plan = list[float](), bench.head.plan

        def note(now: float) -> PlannedStep | None:
            plans.append(now)
            return plan(now)

        monkeypatch.setattr(bench.head, "plan", note)
        await bench.stages[0].send(Result(step.epoch, step.step, 0))
        await bench.settle()
        assert not plans, "the answers of the step are still to come"
        await bench.stages[LAST].send(answer(step))
        step = await bench.step()
        await bench.stages[LAST].send(answer(step))
        await bench.step()
        await bench.settle()
        plans.clear()
        await bench.stages[0].send(Result(step.epoch, step.step, 0))
        await bench.settle()
        assert plans, "a report that is late may have given pages back"


async def test_failed_step_ends_its_requests_once_those_before_are_absorbed() -> None:
    async with driving() as bench:
        bench.ask("good", (5,), max_tokens=3)
        first = await bench.step()
        bench.ask("bad", (6,))
        second = await bench.step()
        await bench.stages[0].send(Result(first.epoch, first.step, 0))
        await bench.stages[0].send(Failure(second.epoch, second.step, 0, "unlucky"))
        await bench.settle()
        bench.ask("late", (7,))
        await bench.settle()
        assert bench.deltas == []
        await bench.stages[LAST].send(answer(first, token=8))
        again = await bench.step()
        assert [(name, delta.tokens) for name, delta in bench.deltas] == [("good", (8,)), ("bad", ())]
        finish = bench.deltas[-1][1].finish
        assert finish is not None
        assert (finish.reason, finish.message) == ("error", "unlucky")
        assert (again.epoch, again.step) == (1, 1)
        assert {row.tokens for row in again.rows} <= {(5, 8), (7,)}


async def test_request_ends_on_time_though_no_stage_answers() -> None:
    async with driving() as bench:
        bench.ask("late", (5,), timeout_s=0.05)
        for _ in range(1000):
            await asyncio.sleep(0 if bench.deltas else 0.01)
        [(name, delta)] = bench.deltas
        assert name == "late"
        assert delta.finish is not None
        assert "timed out" in delta.finish.message


async def test_earlier_of_two_failures_counts() -> None:
    async with driving() as bench:
        bench.ask("first", (5,))
        first = await bench.step()
        bench.ask("second", (6,))
        second = await bench.step()
        await bench.stages[0].send(Result(first.epoch, first.step, 0))
        await bench.stages[0].send(Failure(second.epoch, second.step, 0, "second"))
        await bench.stages[LAST].send(Failure(first.epoch, first.step, LAST, "first"))
        again = await bench.step()
        assert [name for name, _ in bench.deltas] == ["first"]
        assert [row.tokens for row in again.rows] == [(6,)]


async def test_frames_of_an_older_epoch_are_discarded() -> None:
    async with driving() as bench:
        bench.ask("a", (5,))
        first = await bench.step()
        bench.ask("b", (6,))
        second = await bench.step()
        await bench.stages[LAST].send(Failure(first.epoch, first.step, LAST, "unlucky"))
        again = await bench.step()
        await bench.stages[0].send(Result(second.epoch, second.step, 0))
        await bench.stages[LAST].send(answer(second))
        await bench.stages[LAST].send(Heartbeat(again.epoch, -1, LAST))
        await bench.finish(again, token=4)
        await bench.step()
        assert [(name, delta.tokens) for name, delta in bench.deltas] == [("a", ()), ("b", (4,))]


@pytest.mark.parametrize(
    ("stage", "message", "said"),
    [
        (LAST, Result(Epoch(0), 2, LAST), "stage 1 of 2 is lost: it reported step 2 of epoch 0"),
        (0, Result(Epoch(0), 0, 0), "stage 0 of 2 is lost: it reported step 0"),
        (0, Failure(Epoch(0), 5, 0, "?"), "stage 0 of 2 is lost: it reported step 5"),
        (0, Result(Epoch(1), 1, 0), "it reported step 1 of epoch 1"),
        (0, Result(Epoch(0), 1, LAST), "stage 0 of 2 is lost: it sent a Result that is not its own"),
        (LAST, Step(Epoch(0), 1), "stage 1 of 2 is lost: it sent a Step"),
        (LAST, Failure(Epoch(0), 0, LAST, "dead", lost=True), "stage 1 of 2 is lost: dead"),
        (0, Result(Epoch(0), 1, 0, free=(3,)), "stage 0 of 2 is lost: stage 0 has (3,) free pages"),
        (LAST, Result(Epoch(0), 1, LAST), "stage 1 of 2 is lost: the last stage sent 0 answers"),
    ],
)
async def test_stage_that_speaks_out_of_turn_is_lost(stage: int, message: Message, said: str) -> None:
    async with driving() as bench:
        bench.ask("a", (5,))
        await bench.step()
        await bench.stages[stage].send(message)
        assert said in await bench.lost()


@pytest.mark.parametrize("stage", [0, LAST])
async def test_stage_whose_link_ends_is_lost(stage: int) -> None:
    async with driving() as bench:
        bench.ask("a", (5,))
        await bench.step()
        await bench.stages[stage].close()
        assert f"stage {stage} of 2 is lost: the link between nodes 'head' and 'stage-{stage}'" in await bench.lost()


async def test_loss_says_which_peer_a_stage_has_lost_and_why() -> None:
    async with driving() as bench:
        failure = Failure(Epoch(0), 0, 0, "?", lost=True, at_fault=False, cause="link", peer="stage-1")
        await bench.stages[0].send(failure)
        loss = await bench.loss()
        assert (loss.stage, loss.cause, loss.peer, loss.reason) == (None, "link", "stage-1", "?")


async def test_loss_of_the_head_s_own_link_names_no_other_peer() -> None:
    async with driving() as bench:
        await bench.stages[0].close()
        loss = await bench.loss()
        assert (loss.stage, loss.cause, loss.peer) == (None, "link", "")


@pytest.mark.parametrize("first", [0, LAST])
async def test_invalid_frame_is_the_loss_among_several_that_are_heard_of_at_once(first: int) -> None:
    async with driving() as bench:
        failure = Failure(Epoch(0), 0, 0, "?", lost=True, at_fault=False, cause="link")
        losses = [failure, msgspec.structs.replace(failure, stage=LAST, cause="invalid_frame", peer="stage-0")]
        for stage in (first, LAST - first):
            await bench.stages[stage].send(losses[stage])
        assert (await bench.loss()).cause == "invalid_frame"
