from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from parallax_core.api import Stage
from parallax_core.node.channel import Channel
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.runtime import StageRuntime, StepOutcome
from parallax_core.node.worker.thread import StageThread
from parallax_core.testing.bench import WorkerLinks
from parallax_core.testing.worker import WorkerConformance
from parallax_core.wire.messages import Failure, Result, Step
from tests.conformance.harness import list_tests, run_test


class NodeKit(WorkerConformance):
    host: type[StageRuntime] = StageRuntime
    worker: type[StageLoop] = StageLoop

    async def work(self, open_stage: Callable[[], Stage], number: int, links: WorkerLinks) -> None:
        stage_thread, host = StageThread("kit"), self.host(open_stage, number)
        await stage_thread.call(host.open)
        before = Channel(links.before) if links.before else None
        after = Channel(links.after) if links.after else None
        try:
            await self.worker(stage_thread, host, StageChannels(Channel(links.head), before, after)).run()
        finally:
            stage_thread.call(host.close)
            stage_thread.close()


class TestNode(NodeKit):
    """The worker of core passes."""


def copy_step(old: Step, **changes: int) -> Step:
    return msgspec.structs.replace(old, **changes)


class Timeless(StageRuntime):
    """Takes the steps of an older epoch for those of this one."""

    def submit(self, step: Step) -> None:
        super().submit(copy_step(step, epoch=max(self.epoch, step.epoch), step=self.step + 1))


class Eager(StageLoop):
    """Begins steps of older epochs too, which reach the runtime only so."""

    def _begin(self, step: Step) -> None:
        self._runtime.submit(step)


class Unordered(StageRuntime):
    """Takes steps as they come."""

    def submit(self, step: Step) -> None:
        super().submit(copy_step(step, step=self.step + 1 if step.epoch == self.epoch else 1))


class Dogged(StageRuntime):
    """Goes on after a step that failed."""

    def submit(self, step: Step) -> None:
        self._failed = 0
        super().submit(step)


class Dramatic(StageRuntime):
    """Calls every failure a loss."""

    def finish(self) -> StepOutcome | None:
        outcome = super().finish()
        if outcome is None or not isinstance(report := outcome.report, Failure):
            return outcome
        return StepOutcome(Failure(report.epoch, report.step, report.stage, report.message, lost=True))


class Calm(StageRuntime):
    """Calls no failure a loss."""

    def finish(self) -> StepOutcome | None:
        outcome = super().finish()
        if outcome is None or not isinstance(report := outcome.report, Failure):
            return outcome
        return StepOutcome(Failure(report.epoch, report.step, report.stage, report.message))


class Final(StageRuntime):
    """Takes nothing more of an epoch in which a step has failed."""

    def submit(self, step: Step) -> None:
        if self._failed and step.epoch == self.epoch:
            self.discard()
        else:
            super().submit(step)


class Discreet(StageRuntime):
    """Names nobody."""

    def finish(self) -> StepOutcome | None:
        outcome = super().finish()
        if outcome is None or not isinstance(report := outcome.report, Failure):
            return outcome
        return StepOutcome(msgspec.structs.replace(report, sequences=()))


class Hoarding(StageRuntime):
    """Keeps what is open when a new epoch begins."""

    def submit(self, step: Step) -> None:
        self._open.clear()
        super().submit(step)


class Wrong(StageRuntime):
    """Says that all pages are free."""

    def finish(self) -> StepOutcome | None:
        outcome = super().finish()
        if outcome is None or not isinstance(report := outcome.report, Result):
            return outcome
        head = (report.epoch, report.step, report.stage)
        return StepOutcome(Result(*head, report.answers, tuple(free + 1 for free in report.free)), outcome.onward)


class Mute(StageRuntime):
    """Forgets the answers."""

    def finish(self) -> StepOutcome | None:
        outcome = super().finish()
        if outcome is None or not isinstance(report := outcome.report, Result):
            return outcome
        return StepOutcome(Result(report.epoch, report.step, report.stage, (), report.free), outcome.onward)


class Bare(StageRuntime):
    """Hands on rows without edits."""

    def finish(self) -> StepOutcome | None:
        outcome = super().finish()
        if outcome is None or outcome.onward is None:
            return outcome
        one = outcome.onward
        return StepOutcome(outcome.report, Step(one.epoch, one.step, (), one.rows, one.hidden))


class Stuttering(StageLoop):
    """Puts the results of two steps in the wrong order."""

    async def _give(self) -> None:
        while True:
            first = await (await self._running.get())
            second = await (await self._running.get())
            for outcome in (second, first):
                if outcome is not None:
                    await self._channels.head.send(outcome.report)


class Insistent(StageLoop):
    """Hands on a step that failed."""

    def _begin(self, step: Step) -> None:
        self.begun = step
        super()._begin(step)

    def _compute(self) -> StepOutcome | None:
        outcome = super()._compute()
        if outcome is not None and isinstance(outcome.report, Failure):
            return StepOutcome(outcome.report, self.begun)
        return outcome


class Oblivious(StageLoop):
    """Does not notice who is gone."""

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await asyncio.get_running_loop().create_future()

    async def _tell_loss(self, error: Exception) -> None:
        """Say nothing."""


FAULTS: list[tuple[type[StageRuntime], type[StageLoop], str, str]] = [
    (Mute, StageLoop, "test_answers_are_those_of_the_stage", "drew no token"),
    (Wrong, StageLoop, "test_answers_are_those_of_the_stage", "pages free, but"),
    (Mute, StageLoop, "test_last_stage_answers_to_the_head", "a step with one draw has the answers ()"),
    (StageRuntime, Stuttering, "test_results_keep_the_order_of_the_steps", "the results are those of steps [2, 1"),
    (Bare, StageLoop, "test_step_goes_on_to_the_next_stage", "was forwarded as"),
    (Bare, StageLoop, "test_step_that_only_edits_takes_its_place", "was forwarded as"),
    (Hoarding, StageLoop, "test_new_epoch_begins_with_nothing", "in a new epoch"),
    (Timeless, Eager, "test_stale_steps_are_discarded", "received (epoch, step)"),
    (Unordered, StageLoop, "test_gap_in_the_steps_is_a_loss", "instead of a failure"),
    (Calm, StageLoop, "test_gap_in_the_steps_is_a_loss", "the worker reports"),
    (
        Dogged,
        StageLoop,
        "test_failed_step_is_told_and_the_stage_goes_on",
        "after a failed step, the worker sent",
    ),
    (Dramatic, StageLoop, "test_failed_step_is_told_and_the_stage_goes_on", "is reported as a loss"),
    (Final, StageLoop, "test_failed_step_may_be_tried_again", "the worker sent no message"),
    (Discreet, StageLoop, "test_sequences_at_fault_are_named", "sequence 1 is at fault"),
    (StageRuntime, Insistent, "test_failed_step_is_not_handed_on", "received the steps [1, 2]"),
    (Calm, StageLoop, "test_failed_edit_is_a_loss", "an edit failed"),
    (StageRuntime, Oblivious, "test_lost_neighbour_is_told_to_the_head", "the worker sent no message"),
    (StageRuntime, Oblivious, "test_work_ends_when_the_head_is_lost", "goes on without a head"),
]


@pytest.mark.parametrize(("host", "worker", "name", "finding"), FAULTS)
def test_kit_catches_a_fault(host: type[StageRuntime], worker: type[StageLoop], name: str, finding: str) -> None:
    kit = type("Kit", (NodeKit,), {"host": host, "worker": worker, "patience_s": 1.0})
    assert finding in run_test(kit, name)


def test_every_test_of_the_kit_catches_something() -> None:
    assert set(list_tests(WorkerConformance)) == {name for _, _, name, _ in FAULTS}
