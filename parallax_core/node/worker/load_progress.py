"""Reports the progress of loading to the head."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.node_service import NodeLink
from parallax_core.contracts.progress import Unit

INTERVAL_S = 0.2
"""Seconds between reports."""

WriteProgress = Callable[[str, int, int, Unit], object]
"""Returns the message that reports a task: its name, how much is done, the total (-1: not known), and the unit."""


class LoadProgressReporter:
    """A thread-safe `Progress` and async context manager that sends the latest progress to the head at intervals.

    If the head is lost, the next call raises `PeerLost`, which ends the loading.
    """

    def __init__(self, link: NodeLink, write: WriteProgress) -> None:
        """Report over ``link``, in messages that ``write`` returns."""
        self._link = link
        self._write = write
        self._latest: dict[str, object] = {}
        self._lost: PeerLost | None = None
        self._task: asyncio.Task[None] | None = None

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Note the progress of ``task``."""
        if self._lost is not None:
            raise self._lost
        self._latest[task] = self._write(task, done, -1 if total is None else total, unit)

    async def __aenter__(self) -> Self:
        """Start to report."""
        self._task = asyncio.create_task(self._tell())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the last progress and stop."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(PeerLost):
            await self._send()

    async def _tell(self) -> None:
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                await self._send()
        except PeerLost as error:
            self._lost = error

    async def _send(self) -> None:
        while self._latest:
            _, loading = self._latest.popitem()
            await self._link.send(loading)
