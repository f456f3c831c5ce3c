"""Tasks that succeed together, or fail as the first of them failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class FailFastGroup:
    """A group of tasks, like `asyncio.TaskGroup`; the first error is raised as it is, not as part of a group.

    Whoever waits for it is cancelled as any other, also at the moment when one of its tasks fails: before Python 3.13,
    a `asyncio.TaskGroup` swallows such a cancellation.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._errors: list[BaseException] = []
        self._ended = asyncio.Event()
        """One of them has failed, or all have ended."""
        self._is_over = False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task of the group. That somebody else cancels it, or what it waits for, is an error like others."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._note)
        self._tasks.append(task)
        if not self._errors:
            self._ended.clear()
        return task

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all; when one fails, the others are cancelled."""
        try:
            if error is None and self._tasks:
                await self._ended.wait()
        finally:
            await self._settle()
        if error is None and self._errors:
            raise self._errors[0]

    def _note(self, task: asyncio.Task[Any]) -> None:
        error = self._find_error(task)
        if error is not None:
            self._errors.append(error)
        if error is not None or all(each.done() for each in self._tasks):
            self._ended.set()

    def _find_error(self, task: asyncio.Task[Any]) -> BaseException | None:
        if not task.cancelled():
            return task.exception()
        if self._is_over:
            return None
        return RuntimeError(f"{getattr(task.get_coro(), '__qualname__', task)} was cancelled by somebody else")

    async def _settle(self) -> None:
        """Cancel what still runs, and wait for its end, however often we are cancelled ourselves."""
        is_cancelled = False
        self._is_over = True
        pending = {task for task in self._tasks if not task.done()}
        for task in pending:
            task.cancel()
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError:
                is_cancelled = True
                pending = {task for task in pending if not task.done()}
        if is_cancelled:
            raise asyncio.CancelledError
