"""The step loop of a stage: receives steps, runs them, and sends their results on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass

import msgspec

from parallax_core.base.errors import ParallaxError, PeerLost, StageLost
from parallax_core.base.ids import Epoch
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.engine.stage_clock import MOST_IN_FLIGHT
from parallax_core.node.channel import Channel
from parallax_core.node.worker.mask_mailbox import MaskMailbox
from parallax_core.node.worker.runtime import StageRuntime, StepOutcome
from parallax_core.node.worker.thread import StageThread
from parallax_core.wire.membership import Assign, Leave, Release
from parallax_core.wire.messages import Failure, Heartbeat, Mask, Message, Step

logger = logging.getLogger(__name__)

AHEAD = 1
"""Queued steps, besides the running and the arriving one; the rest wait on the link."""


@dataclass(frozen=True, slots=True)
class StageChannels:
    """The channels of a stage to its head and its neighbours."""

    head: Channel
    before: Channel | None = None
    """To the stage before; None: the head sends the steps."""
    after: Channel | None = None
    """To the next stage; None: this is the last."""


class StageLoop:
    """Runs one stage: receives steps, runs them in order on the stage's thread, and sends their results.

    While the stage computes a step, the next one is received, decoded and queued, and the results of the last one are
    encoded and sent: the stage waits for a link only if a receiver stops reading. A stage that takes steps ahead
    (`StageInfo.steps_ahead`) is given the next step, if it has come, before the result of one is waited for.

    Hidden states arrive in the dtype of the stage before and are converted to the dtypes of `StageInfo.takes`.
    """

    def __init__(
        self, thread: StageThread, runtime: StageRuntime, channels: StageChannels, heartbeat_s: float | None = None
    ) -> None:
        self._thread = thread
        self._runtime = runtime
        self._channels = channels
        self._heartbeat_s = heartbeat_s
        self._inbox: deque[Step] = deque()
        """Received and not submitted, oldest first. The event loop appends, the stage's thread takes."""
        self._masks = runtime.mailbox = MaskMailbox()
        most = AHEAD if channels.before is not None else MOST_IN_FLIGHT  # masks follow the steps of a head on its link
        self._running: asyncio.Queue[asyncio.Future[StepOutcome | None]] = asyncio.Queue(most)
        self._newest = -1
        """The newest epoch received; steps of older epochs are not run."""
        self._num_queued = 0
        self._is_over = False
        self._has_told = False
        self._control: Message | None = None
        """The control message that ended the loop; the session handles it."""
        self._leaving = asyncio.Event()

    async def run(self) -> Message | None:
        """Run until the stage, its head or a neighbour is lost, or the head sends a control message.

        The head is told about a loss if it is still there.

        Returns:
            The control message; None after a loss.
        """
        try:
            async with FailFastGroup() as group:
                group.start(self._take())
                group.start(self._give())
                if self._channels.before is not None:
                    group.start(self._listen(self._channels.head))
                if self._channels.after is not None:
                    group.start(self._listen(self._channels.after))
                if self._heartbeat_s is not None:
                    group.start(self._beat(self._heartbeat_s))
                group.start(self._announce_leave())
        except Exception as error:  # noqa: BLE001 -- the head has to know any error
            if self._control is None:
                await self._tell_loss(error)
        finally:
            self._is_over = True
            self._masks.close()
        return self._control

    def leave(self) -> None:
        """Tell the head that the node is about to end; the loop goes on."""
        self._leaving.set()

    async def _announce_leave(self) -> None:
        await self._leaving.wait()
        await self._channels.head.send(Leave(Epoch(max(0, self._runtime.epoch))))

    async def _take(self) -> None:
        source = self._channels.before or self._channels.head
        while True:
            message = await source.receive()
            if isinstance(message, Mask) and source is self._channels.head:
                self._keep_mask(source, message)
                continue
            if not isinstance(message, Step):
                raise self._refuse(source, message)
            self._newest = max(self._newest, message.epoch)
            self._masks.note_step(message, is_ordered=source is self._channels.head)
            self._num_queued += 1
            self._inbox.append(message)
            await self._running.put(self._thread.call(self._compute))

    async def _give(self) -> None:
        while True:
            outcome = await (await self._running.get())
            self._num_queued -= 1
            if outcome is None:
                continue
            if outcome.onward is not None and self._channels.after is not None:
                await self._channels.after.send(outcome.onward)
            await self._channels.head.send(outcome.report)
            if isinstance(outcome.report, Failure) and outcome.report.lost:
                self._has_told = True
                raise StageLost(outcome.report.message)

    async def _listen(self, channel: Channel) -> None:
        """Raise when the peer is lost; only a head may send something: masks, to the last stage."""
        while True:
            message = await channel.receive()
            if not isinstance(message, Mask) or channel is not self._channels.head:
                raise self._refuse(channel, message)
            self._keep_mask(channel, message)

    def _keep_mask(self, channel: Channel, mask: Mask) -> None:
        if self._channels.after is not None:
            raise self._refuse(channel, mask)
        self._masks.put(mask)

    def _refuse(self, channel: Channel, message: Message) -> Exception:
        if channel is self._channels.head and isinstance(message, Assign | Release):
            self._control = message
        return StageLost(f"unexpected {type(message).__name__} message from node {channel.peer!r}")

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            runtime = self._runtime
            epoch, step = Epoch(max(0, runtime.epoch)), runtime.step or -1
            counts = (runtime.num_steps, runtime.num_tokens, self._num_queued, runtime.num_open)
            await self._channels.head.send(Heartbeat(epoch, step, runtime.number, *counts, *runtime.running))

    def _compute(self) -> StepOutcome | None:
        """Submit the steps that have come, as many as the stage takes, and finish the oldest; on the stage's thread.

        Called once for each step received, so each call returns the outcome of one step, in order.
        """
        while self._inbox and self._runtime.num_submitted <= self._runtime.steps_ahead:
            self._begin(self._inbox.popleft())
        return self._runtime.finish()

    def _begin(self, step: Step) -> None:
        if self._is_over or step.epoch < self._newest:
            self._runtime.discard()
        else:
            self._runtime.submit(step)

    async def _tell_loss(self, error: Exception) -> None:
        if self._has_told:
            return
        runtime, name = self._runtime, type(error).__name__
        message = error.message if isinstance(error, ParallaxError) else f"{name}: {error}"
        if not isinstance(error, PeerLost):
            logger.error("stage ends stage=%d: %s", runtime.number, message, exc_info=error)
        failure = Failure(Epoch(max(0, runtime.epoch)), runtime.step, runtime.number, message, lost=True)
        if isinstance(error, PeerLost):
            failure = msgspec.structs.replace(failure, at_fault=False, cause=error.cause, peer=error.peer)
        with contextlib.suppress(PeerLost):
            await self._channels.head.send(failure)
