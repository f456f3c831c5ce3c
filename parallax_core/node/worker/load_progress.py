"""Reports the progress of loading to the head."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.progress import Unit
from parallax_core.node.channel import Channel
from parallax_core.wire.engine import AssignEngine
from parallax_core.wire.membership import Assign, Loading

INTERVAL_S = 0.2
"""Seconds between reports."""


class LoadProgressReporter:
    """A thread-safe `Progress` and async context manager that sends the latest progress to the head at intervals.

    If the head is lost, the next call raises `PeerLost`, which ends the loading.
    """

    def __init__(self, channel: Channel, assign: Assign | AssignEngine) -> None:
        self._channel = channel
        self._assign = assign
        self._latest: dict[str, Loading] = {}
        self._lost: PeerLost | None = None
        self._task: asyncio.Task[None] | None = None

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Note the progress of ``task``."""
        if self._lost is not None:
            raise self._lost
        assign = self._assign
        total = -1 if total is None else total
        self._latest[task] = Loading(assign.lease, assign.epoch, assign.stage, task, done, total, unit)

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
            await self._channel.send(loading)
