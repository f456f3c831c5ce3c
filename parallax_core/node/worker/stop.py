"""Ends a worker on SIGINT or SIGTERM, after another node has taken over its stage."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import TypeVar

from parallax_core.base.errors import PeerLost
from parallax_core.node.worker.session import WorkerSession

T = TypeVar("T")

logger = logging.getLogger(__name__)


async def run_until_signal(running: Coroutine[None, None, T]) -> T | None:
    """Run until it ends, and return its result; None: a SIGINT or SIGTERM has ended it."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(running)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def serve_until_signal(session: WorkerSession, serving: Coroutine[None, None, None], drain_s: float) -> None:
    """Run ``serving``, which serves with ``session``, until it ends or a SIGINT or SIGTERM ends it.

    If a pipeline uses the stage of this node, the first signal asks the head to replace the node, and gives it
    ``drain_s`` seconds for that. A second signal ends ``serving`` at once; so does the first if no pipeline uses it.
    """
    loop = asyncio.get_running_loop()
    stop = _Stop(session, loop.create_task(serving), drain_s)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.handle)
    try:
        await stop.task
    except asyncio.CancelledError:
        if not stop.is_told:
            raise
    except PeerLost as error:
        if not session.is_leaving:
            raise
        logger.info("this node has left: %s", error.message)


class _Stop:
    """Ends a task on signals."""

    def __init__(self, session: WorkerSession, task: asyncio.Task[None], drain_s: float) -> None:
        self.task = task
        self.is_told = False
        """Whether a signal has ended the task."""
        self._session = session
        self._drain_s = drain_s

    def handle(self) -> None:
        """Handle a signal."""
        if self._session.is_leaving or not self._session.is_needed or not self._drain_s:
            self._end()
            return
        self._session.leave()
        logger.info("this node leaves, at the latest in %g s; a second signal ends it at once", self._drain_s)
        asyncio.get_running_loop().call_later(self._drain_s, self._end)

    def _end(self) -> None:
        self.is_told = True
        self.task.cancel()
