"""Rebuilds a pipeline after a loss, or after a node has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parallax_core.base.errors import EngineFailed, ParallaxError, StageHung, StageLost
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.contracts.stage import StageInfo
from parallax_core.engine.head import Head
from parallax_core.node.backoff import Backoff
from parallax_core.node.executor.base import Executor
from parallax_core.node.pipeline.driver import Deliver
from parallax_core.node.pipeline.handover import Interruption
from parallax_core.node.pipeline.options import PipelineOptions

logger = logging.getLogger(__name__)


class Recovery:
    """Opens the stages of an executor again, and has the head compute its requests again on them.

    Meanwhile requests whose timeout passes end, and all of them once they have waited for too long.

    The pauses grow while the stages cannot be opened, or are lost again without a token in between. It retries after
    every failure, since a missing node may come back at any time; only an executor with `Executor.most_failures`
    gives up in the end.
    """

    def __init__(
        self, executor: Executor, head: Head, options: PipelineOptions, tell: Callable[[str], None], deliver: Deliver
    ) -> None:
        """Rebuild the stages of ``executor``; ``tell`` is called with the reason while that takes time.

        ``deliver`` is given the deltas of the requests that end meanwhile.
        """
        self._executor = executor
        self._head = head
        self._timeout_s = options.recovery_timeout_s
        self._deliver = deliver
        self._backoff = Backoff(tell, executor.most_failures)
        self._num_tokens = 0

    async def heal(self, cause: StageLost | Interruption) -> tuple[StageInfo, ...]:
        """Open the stages, with as many attempts as that takes; have the requests go on; return the stages' infos.

        Raises:
            EngineFailed: if it gives up.
        """
        async with FailFastGroup() as group:
            opening = group.start(self._open(cause))
            group.start(self._expire(opening, cause))
        infos = opening.result()
        self._head.resume(infos, _now())
        return infos

    async def _open(self, cause: StageLost | Interruption) -> tuple[StageInfo, ...]:
        if (tokens := self._head.stats().output_tokens) > self._num_tokens:
            self._num_tokens = tokens
            self._backoff.reset()
        reason = f"a stage was lost, and is being replaced: {cause.message}"
        if isinstance(cause, StageLost):  # else all stages are loaded
            await self._abandon(cause)
            await self._backoff.wait(reason)
        while True:
            try:
                return await self._executor.open()
            except EngineFailed:
                raise
            except ParallaxError as error:
                reason = f"the pipeline cannot be built: {error.message}{f' ({error.hint})' if error.hint else ''}"
            except Exception as error:  # the next attempt may succeed, whatever the error is
                logger.exception("pipeline cannot be built")
                reason = f"the pipeline cannot be built: {type(error).__name__}: {error}"
            await self._backoff.wait(reason)

    async def _abandon(self, loss: StageLost) -> None:
        """Give up a stage that hangs, or whose node leaves."""
        if loss.stage is not None and (isinstance(loss, StageHung) or loss.cause == "leave"):
            await self._executor.abandon(loss.stage)

    async def _expire(self, opening: asyncio.Task[tuple[StageInfo, ...]], cause: StageLost | Interruption) -> None:
        """End the requests whose time is over while the stages open."""
        head, until = self._head, _now() + self._timeout_s
        while not opening.done():
            now = _now()
            head.expire(now)
            if now >= until:
                message = f"a stage was lost, and was not replaced within {self._timeout_s:g} s: {cause.message}"
                head.expire_all(message, now)
            self._deliver(head.take_deltas())
            ends = [each for each in (until, head.next_deadline()) if each is not None and each > now]
            await asyncio.wait([opening], timeout=min(ends) - now if ends else None)


def _now() -> float:
    return asyncio.get_running_loop().time()
