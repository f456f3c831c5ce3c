"""Hands the stages of nodes that leave over to other nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from parallax_core.base.errors import ParallaxError, StageLost
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.engine.head import Head
from parallax_core.node.backoff import Backoff
from parallax_core.node.executor.base import Executor, Movable

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at whether a node that has no successor is still needed."""


class Interruption(Exception):
    """The stages of a pipeline are to be opened again, although none was lost: no error, but the end of an epoch.

    ``replaced``: another node has loaded a stage whose node leaves. ``moves``: the layers are to be on other nodes.
    """

    def __init__(self, kind: Literal["replaced", "moves"], message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


async def follow(executor: Executor) -> None:
    """Wait until the stages of a pipeline that serves are to be on other nodes.

    Raises:
        Interruption: once they are.
    """
    if isinstance(executor, Movable):
        raise Interruption("moves", await executor.wait_moved())


class Handover:
    """Finds successors for the nodes of a pipeline that leave, while the pipeline serves."""

    def __init__(
        self, executor: Executor, head: Head, tell: Callable[[str], None], is_releasing: Callable[[], bool]
    ) -> None:
        """Replace the stages of ``executor``, which run the steps of ``head``.

        ``tell`` is called with what the pipeline waits for. While ``is_releasing``, the requests can move to another
        replica, and a node without a loaded successor is released soon.
        """
        self._executor = executor
        self._head = head
        self._tell = tell
        self._is_releasing = is_releasing

    async def run(self, leaving: asyncio.Queue[int]) -> None:
        """Handle the stages in ``leaving``, each once.

        Raises:
            Interruption: once another node has loaded a stage.
            StageLost: once the requests no longer need a stage that has no other node; its cause is ``leave``.
        """
        seen: set[int] = set()

        async def take() -> None:
            while True:
                if (stage := await leaving.get()) not in seen:
                    seen.add(stage)
                    group.start(self._replace(stage))

        async with FailFastGroup() as group:
            group.start(take())

    async def _replace(self, stage: int) -> None:
        node = self._executor.locations()[stage].node
        logger.info("node leaves node=%s stage=%d", node, stage)
        replacing = asyncio.create_task(self._try(stage, node))
        try:
            while not replacing.done():
                await asyncio.wait([replacing], timeout=LOOK_S)
                if not replacing.done() and not self._is_needed():
                    break
        finally:
            replacing.cancel()
            await asyncio.wait([replacing])
        if not replacing.cancelled() and replacing.result():
            raise Interruption("replaced", f"node {node!r} has left stage {stage}")
        raise StageLost("it leaves, and no other node has its layers", stage=stage, cause="leave")

    async def _try(self, stage: int, node: str) -> bool:
        """Load the stage on another node; return False if this process cannot provide one."""
        backoff, reason = Backoff(self._tell), f"node {node!r} leaves, and stage {stage} waits for another one"
        while True:
            await backoff.wait(reason)
            try:
                return await self._executor.replace(stage)
            except ParallaxError as error:
                reason = f"stage {stage} of node {node!r}, which leaves, cannot be handed over: {error.message}"
            except Exception as error:  # the pipeline still serves, whatever the error is
                logger.exception("stage cannot be handed over")
                reason = f"stage {stage} cannot be handed over: {type(error).__name__}: {error}"
            logger.warning("%s", reason)

    def _is_needed(self) -> bool:
        stats = self._head.stats()
        return not self._is_releasing() and stats.running + stats.waiting > 0
