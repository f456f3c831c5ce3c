"""Sends the head's steps to the first stage and hands the results of all stages back to the head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from parallax_core.base.errors import ParallaxError, PeerLost, StageHung, StageLost
from parallax_core.base.ids import RequestId
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.contracts.engine import Delta
from parallax_core.contracts.stage import Row, StageResult
from parallax_core.contracts.tensor import Tensor
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import StepObserver
from parallax_core.node.pipeline.mask_maker import MaskMaker
from parallax_core.wire.membership import Leave
from parallax_core.wire.messages import Failure, Heartbeat, Mask, Message, Result, Step

Outbox = asyncio.Queue[Step | Mask]
"""Messages to a stage that wait to be sent."""
Deliver = Callable[[list[tuple[RequestId, Delta]]], None]
"""Passes deltas to the streams of their requests."""


@dataclass(slots=True)
class EpochProgress:
    """The steps of an epoch that were sent and finished."""

    finished: list[int]
    """The last step each stage has finished; 0: none."""
    sent: int = 0
    """The last step sent to the first stage; 0: none."""
    rows: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    """The rows of each step that some stage has not finished."""
    failure: Failure | None = None
    """The first failed step; nothing is planned until the head has handled it."""


class PipelineDriver:
    """Drives a pipeline for a head, wherever its stages run.

    Each stage reports its steps in order over one link, but a later stage's report may arrive before an earlier one's.
    A report out of order is an error of the stage that sent it.
    """

    def __init__(
        self,
        head: Head,
        channels: Sequence[Channel],
        deliver: Deliver,
        step_timeout_s: float | None = None,
        masks: MaskMaker | None = None,
    ) -> None:
        """Drive ``head`` over ``channels``, one to each stage, and pass the deltas of its requests to ``deliver``.

        ``step_timeout_s`` limits the seconds a stage may compute a step; None: `StepLimit` sets the limit. ``masks``
        makes the masks of draws; without it, the head must have no request with a grammar.
        """
        self._head = head
        self._channels = tuple(channels)
        self._deliver = deliver
        self._outbox: Outbox = asyncio.Queue()  # as long as the head has steps in flight
        self._mask_outbox: Outbox = self._outbox if len(channels) == 1 else asyncio.Queue()
        """The messages to the last stage: to a single stage, masks follow their steps."""
        self._masks = masks
        self._news = asyncio.Event()
        self._losses: list[StageLost] = []
        self.leaving: asyncio.Queue[int] = asyncio.Queue()
        """The stages whose nodes are about to leave."""
        self.observer: StepObserver | None = None
        """Told how long each stage computes each step; None: nothing is."""
        self._step_timeout_s = step_timeout_s
        self._progress = self._begin()

    @property
    def queued(self) -> tuple[int, ...]:
        """For each stage, the number of steps that the stage before it has finished and it has not."""
        finished = self._progress.finished
        reached = (self._progress.sent, *finished[:-1])
        return tuple(max(0, before - after) for before, after in zip(reached, finished, strict=True))

    def wake(self) -> None:
        """Plan again: a request was accepted or cancelled."""
        self._news.set()

    async def run(self) -> NoReturn:
        """Serve until something fails.

        Raises:
            StageLost: if a stage is lost; it names the stage.
            Exception: for a bug in Parallax.
        """
        try:
            async with FailFastGroup() as group:
                for stage, channel in enumerate(self._channels):
                    group.start(self._listen(stage, channel))
                group.start(self._send(0, self._outbox))
                if self._mask_outbox is not self._outbox:
                    group.start(self._send(len(self._channels) - 1, self._mask_outbox))
                group.start(self._plan())
        except StageLost as error:  # of several losses at once, an unreadable frame is the cause of the others
            raise next((loss for loss in self._losses if loss.cause == "invalid_frame"), error) from error.__cause__
        finally:
            self._deliver(self._head.take_deltas())
        raise AssertionError("none of the tasks ends by itself")

    async def _plan(self) -> None:
        """Plan after each event: a request accepted or cancelled, a result, the end of a hold, a deadline."""
        head = self._head
        while True:
            self._news.clear()
            head.expire(_now())
            if self._masks is not None:
                self._masks.hand_over(_now())
                self._masks.make()
            while self._progress.failure is None and (step := head.plan(_now())) is not None:
                self._post(step)
            await asyncio.sleep(0)  # send the step before the readers of the streams get to work
            if not head.mask_hold_s(_now()):  # the next step is sent first, too
                self._deliver(head.take_deltas())
            try:
                async with asyncio.timeout(self._find_wait_s()):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _post(self, step: PlannedStep) -> None:
        """Send a step, and its masks: these go straight to the last stage."""
        epoch, batch = step.epoch, step.batch
        self._progress.sent = batch.step
        self._progress.rows[batch.step] = batch.rows
        self._outbox.put_nowait(Step(epoch, batch.step, step.edits, batch.rows, (), batch.embeddings))
        for row, output, bits in step.masks:
            tensor = Tensor("uint8", (len(bits),), bits)
            self._mask_outbox.put_nowait(Mask(epoch, batch.step, row, tensor, output))

    def _find_wait_s(self) -> float | None:
        """Return the seconds until the next hold or deadline ends, or None."""
        waits = [hold] if (hold := self._head.hold_s(_now())) else []
        if (deadline := self._head.next_deadline()) is not None:
            waits.append(max(0.0, deadline - _now()))
        return min(waits, default=None)

    async def _send(self, stage: int, outbox: Outbox) -> None:
        while True:
            message = await outbox.get()
            try:
                await self._channels[stage].send(message)
            except (PeerLost, ValueError) as error:
                raise self._lost(stage, error) from error

    async def _listen(self, stage: int, channel: Channel) -> None:
        while True:
            try:
                message = await channel.receive()
                if isinstance(message, Leave):
                    self.leaving.put_nowait(stage)
                else:
                    self._take(stage, message)
            except (PeerLost, StageLost) as error:
                raise self._lost(stage, error) from error
            is_last = stage == len(self._channels) - 1
            if is_last or not isinstance(message, Result) or message.step <= self._progress.finished[-1]:
                self._news.set()  # else it comes with the answers

    def _take(self, stage: int, message: Message) -> None:
        if not isinstance(message, Result | Failure | Heartbeat) or message.stage != stage:
            raise StageLost(f"it sent a {type(message).__name__} that is not its own")
        if isinstance(message, Heartbeat):
            self._check_progress(stage, message)
            return
        if isinstance(message, Failure) and message.lost:
            raise _read_loss(message)
        if message.epoch < self._head.epoch:
            return
        due = self._progress.finished[stage] + 1
        if message.epoch > self._head.epoch or message.step != due or due > self._progress.sent:
            raise StageLost(f"it reported step {message.step} of epoch {message.epoch}; expected step {due}")
        if isinstance(message, Failure):
            self._note_failure(message)
        else:
            self._note_result(stage, message)
        self._settle()

    def _check_progress(self, stage: int, beat: Heartbeat) -> None:
        """Detect a stage whose step hangs while its loop still runs; a step of an earlier epoch may have any size."""
        most = self._head.limits.max_batch_tokens
        rows = self._progress.rows.get(beat.running) if beat.epoch == self._head.epoch else None
        num_tokens = most if rows is None else sum([len(row.tokens) for row in rows])
        limit_s = self._step_timeout_s or self._head.stage_clock.limit_s(stage, num_tokens)
        if beat.running and beat.running_s > limit_s:
            message = f"it has computed step {beat.running} for {beat.running_s:.3g} s, and may for {limit_s:.3g} s"
            raise StageHung(message)

    def _note_result(self, stage: int, result: Result) -> None:
        progress = self._progress
        progress.finished[stage] = result.step
        if self.observer is not None:
            self.observer.note_step(stage, progress.rows[result.step], result.seconds)
        if min(progress.finished) == result.step:
            del progress.rows[result.step]
        now = _now()
        self._head.confirm(stage, result.step, result.free, result.seconds, now)
        if stage == len(self._channels) - 1:
            answer = StageResult(result.answers, result.tensors, result.free, result.sampling_s)
            self._head.absorb(answer, now)

    def _note_failure(self, failure: Failure) -> None:
        if self._progress.failure is None or failure.step < self._progress.failure.step:
            self._progress.failure = failure

    def _settle(self) -> None:
        """Handle a failed step once all earlier ones are absorbed: the head retries it or begins another epoch."""
        progress, failure = self._progress, self._progress.failure
        if failure is None or failure.step != progress.finished[-1] + 1:
            return
        if self._head.fail(failure.message, failure.sequences):
            progress.sent, progress.failure = failure.step - 1, None
        else:
            self._progress = self._begin()

    def _begin(self) -> EpochProgress:
        return EpochProgress([0] * len(self._channels))

    def _lost(self, stage: int, error: Exception) -> StageLost:
        reason = error.message if isinstance(error, ParallaxError) else str(error)
        kind = StageHung if isinstance(error, StageHung) else StageLost
        loss = kind(
            f"stage {stage} of {len(self._channels)} is lost: {reason}",
            "the log of the stage says more",
            stage if isinstance(error, StageLost) else None,
            cause=error.cause if isinstance(error, PeerLost) else "unknown",
            peer=error.peer if isinstance(error, PeerLost) and error.peer != self._channels[stage].peer else "",
        )
        loss.reason = reason
        self._losses.append(loss)
        return loss


def _read_loss(failure: Failure) -> StageLost | PeerLost:
    """Return what a stage reports that is lost, or has lost a link."""
    if failure.at_fault:
        return StageLost(failure.message)
    return PeerLost(failure.message, cause=failure.cause, peer=failure.peer)


def _now() -> float:
    return asyncio.get_running_loop().time()
