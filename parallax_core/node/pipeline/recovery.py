"""Rebuilds a pipeline after a loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parallax_core.base.errors import EngineFailed, ParallaxError, StageHung, StageLost
from parallax_core.contracts.stage import StageInfo
from parallax_core.engine.head import Head
from parallax_core.node.executor.base import Executor

logger = logging.getLogger(__name__)

WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Backoff seconds by consecutive failures; the last value repeats."""


class Recovery:
    """Opens the stages of an executor again, and has the head begin a new epoch on them.

    The pauses grow while the stages cannot be opened, or are lost again without a token in between. It retries after
    every failure, since a missing node may come back at any time; only an executor with `Executor.most_failures`
    gives up in the end.
    """

    def __init__(self, executor: Executor, head: Head, tell: Callable[[str], None]) -> None:
        """Rebuild the stages of ``executor``; ``tell`` is called with the reason while that takes time."""
        self._executor = executor
        self._head = head
        self._tell = tell
        self._num_failures = 0
        self._num_tokens = 0

    async def heal(self, loss: StageLost) -> tuple[StageInfo, ...]:
        """Open the stages, with as many attempts as that takes, and return their infos.

        Raises:
            EngineFailed: if it gives up.
        """
        if isinstance(loss, StageHung) and loss.stage is not None:
            await self._executor.abandon(loss.stage)
        if (tokens := self._head.stats().output_tokens) > self._num_tokens:
            self._num_tokens, self._num_failures = tokens, 0
        reason = f"a stage was lost, and is being replaced: {loss.message}"
        while True:
            await self._pause(reason)
            try:
                infos = await self._executor.open()
            except EngineFailed:
                raise
            except ParallaxError as error:
                reason = f"the pipeline cannot be built: {error.message}{f' ({error.hint})' if error.hint else ''}"
            except Exception as error:  # the next attempt may succeed, whatever the error is
                logger.exception("pipeline cannot be built")
                reason = f"the pipeline cannot be built: {type(error).__name__}: {error}"
            else:
                self._head.restart(infos)
                return infos

    async def _pause(self, reason: str) -> None:
        if self._num_failures == self._executor.most_failures:
            raise EngineFailed(f"given up after {self._num_failures} failures in a row: {reason}")
        wait_s = WAITS_S[min(self._num_failures, len(WAITS_S) - 1)]
        self._num_failures += 1
        if wait_s:
            logger.warning("trying again in %g s: %s", wait_s, reason)
            self._tell(f"{reason}; trying again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
        self._tell(reason)
