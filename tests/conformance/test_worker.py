from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from parallax_core.api import Stage
from parallax_core.node.channel import Channel
from parallax_core.node.host import Outcome, Place, StageHost
from parallax_core.node.lane import Lane
from parallax_core.node.worker import Channels, StageWorker
from parallax_core.testing.bench import LEASE, WorkerLinks
from parallax_core.testing.worker import WorkerConformance
from parallax_core.wire.messages import Failure, Result, Step
from tests.conformance.harness import list_tests, run_test


class NodeKit(WorkerConformance):
    host: type[StageHost] = StageHost
    worker: type[StageWorker] = StageWorker

    async def work(self, open_stage: Callable[[], Stage], number: int, links: WorkerLinks) -> None:
        lane, place = Lane("kit"), Place(LEASE, number)
        host = self.host(open_stage, place)
        await lane.call(host.open)
        before = Channel(links.before) if links.before else None
        after = Channel(links.after) if links.after else None
        try:
            await self.worker(lane, host, place, Channels(Channel(links.head), before, after)).run()
        finally:
            lane.call(host.close)
            lane.close()


class TestNode(NodeKit):
    """The worker of core passes."""


def copy_step(old: Step, **changes: int) -> Step:
    return msgspec.structs.replace(old, **changes)


class Timeless(StageHost):
    """Takes the steps of an older epoch for those of this one."""

    def run(self, step: Step) -> Outcome | None:
        return super().run(copy_step(step, epoch=max(self.epoch, step.epoch), step=self.step + 1))


class Unordered(StageHost):
    """Takes steps as they come."""

    def run(self, step: Step) -> Outcome | None:
        return super().run(copy_step(step, step=self.step + 1 if step.epoch == self.epoch else 1))


class Public(StageHost):
    """Works for anybody."""

    def run(self, step: Step) -> Outcome | None:
        return super().run(copy_step(step, lease=self.place.lease, epoch=max(0, self.epoch), step=self.step + 1))


class Dogged(StageHost):
    """Goes on after a step that failed."""

    def run(self, step: Step) -> Outcome | None:
        self._is_down = False
        return super().run(step)


class Dramatic(StageHost):
    """Calls every failure a loss."""

    def run(self, step: Step) -> Outcome | None:
        outcome = super().run(step)
        if outcome is None or not isinstance(report := outcome.report, Failure):
            return outcome
        return Outcome(Failure(report.lease, report.epoch, report.step, report.stage, report.message, lost=True))


class Calm(StageHost):
    """Calls no failure a loss."""

    def run(self, step: Step) -> Outcome | None:
        outcome = super().run(step)
        if outcome is None or not isinstance(report := outcome.report, Failure):
            return outcome
        return Outcome(Failure(report.lease, report.epoch, report.step, report.stage, report.message))


class Final(StageHost):
    """Takes nothing more of an epoch in which a step has failed."""

    def run(self, step: Step) -> Outcome | None:
        return None if self._is_down and step.epoch == self.epoch else super().run(step)


class Discreet(StageHost):
    """Names nobody."""

    def run(self, step: Step) -> Outcome | None:
        outcome = super().run(step)
        if outcome is None or not isinstance(report := outcome.report, Failure):
            return outcome
        return Outcome(msgspec.structs.replace(report, sequences=()))


class Hoarding(StageHost):
    """Keeps what is open when a new epoch begins."""

    def run(self, step: Step) -> Outcome | None:
        self._open.clear()
        return super().run(step)


class Wrong(StageHost):
    """Says that all pages are free."""

    def run(self, step: Step) -> Outcome | None:
        outcome = super().run(step)
        if outcome is None or not isinstance(report := outcome.report, Result):
            return outcome
        head = (report.lease, report.epoch, report.step, report.stage)
        return Outcome(Result(*head, report.answers, tuple(free + 1 for free in report.free)), outcome.onward)


class Mute(StageHost):
    """Forgets the answers."""

    def run(self, step: Step) -> Outcome | None:
        outcome = super().run(step)
        if outcome is None or not isinstance(report := outcome.report, Result):
            return outcome
        return Outcome(Result(report.lease, report.epoch, report.step, report.stage, (), report.free), outcome.onward)


class Bare(StageHost):
    """Hands on rows without edits."""

    def run(self, step: Step) -> Outcome | None:
        outcome = super().run(step)
        if outcome is None or outcome.onward is None:
            return outcome
        one = outcome.onward
        return Outcome(outcome.report, Step(one.lease, one.epoch, one.step, (), one.rows, one.hidden))


class Stuttering(StageWorker):
    """Puts the results of two steps in the wrong order."""

    async def _give(self) -> None:
        while True:
            first = await (await self._running.get())
            second = await (await self._running.get())
            for outcome in (second, first):
                if outcome is not None:
                    await self._channels.head.send(outcome.report)


class Insistent(StageWorker):
    """Hands on a step that failed."""

    def _compute(self, step: Step) -> Outcome | None:
        outcome = super()._compute(step)
        if outcome is not None and isinstance(outcome.report, Failure):
            return Outcome(outcome.report, step)
        return outcome


class Oblivious(StageWorker):
    """Does not notice who is gone."""

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await asyncio.get_running_loop().create_future()

    async def _tell_loss(self, error: Exception) -> None:
        """Say nothing."""


FAULTS: list[tuple[type[StageHost], type[StageWorker], str, str]] = [
    (Mute, StageWorker, "test_answers_are_those_of_the_stage", "drew no token"),
    (Wrong, StageWorker, "test_answers_are_those_of_the_stage", "free are"),
    (Mute, StageWorker, "test_last_stage_answers_to_the_head", "one draw is answered with ()"),
    (StageHost, Stuttering, "test_results_keep_the_order_of_the_steps", "results came of steps [2, 1"),
    (Bare, StageWorker, "test_step_goes_on_to_the_next_stage", "was handed on"),
    (Bare, StageWorker, "test_step_that_only_edits_takes_its_place", "was handed on as"),
    (Hoarding, StageWorker, "test_new_epoch_begins_with_nothing", "in a new epoch"),
    (Timeless, StageWorker, "test_stale_steps_are_discarded", "hears of"),
    (Public, StageWorker, "test_steps_of_other_leases_are_discarded", "hears of"),
    (Unordered, StageWorker, "test_gap_in_the_steps_is_a_loss", "where a failure is due"),
    (Calm, StageWorker, "test_gap_in_the_steps_is_a_loss", "the worker says"),
    (
        Dogged,
        StageWorker,
        "test_failed_step_is_told_and_the_stage_goes_on",
        "after a step that failed, the worker says",
    ),
    (Dramatic, StageWorker, "test_failed_step_is_told_and_the_stage_goes_on", "is called a loss"),
    (Final, StageWorker, "test_failed_step_may_be_tried_again", "the worker says nothing"),
    (Discreet, StageWorker, "test_sequences_at_fault_are_named", "sequence 1 is at fault"),
    (StageHost, Insistent, "test_failed_step_is_not_handed_on", "was given steps [1, 2]"),
    (Calm, StageWorker, "test_failed_edit_is_a_loss", "an edit failed"),
    (StageHost, Oblivious, "test_lost_neighbour_is_told_to_the_head", "the worker says nothing"),
    (StageHost, Oblivious, "test_work_ends_when_the_head_is_lost", "works on without a head"),
]


@pytest.mark.parametrize(("host", "worker", "name", "finding"), FAULTS)
def test_kit_catches_a_fault(host: type[StageHost], worker: type[StageWorker], name: str, finding: str) -> None:
    if host is Timeless:  # the worker itself would not even begin such a step
        worker = type("Eager", (StageWorker,), {"_compute": lambda self, step: self._host.run(step)})
    kit = type("Kit", (NodeKit,), {"host": host, "worker": worker, "patience_s": 1.0})
    assert finding in run_test(kit, name)


def test_every_test_of_the_kit_catches_something() -> None:
    assert set(list_tests(WorkerConformance)) == {name for _, _, name, _ in FAULTS}
