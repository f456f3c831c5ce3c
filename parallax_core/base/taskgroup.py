"""A task group that raises the first error of its tasks as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class FailFastGroup:
    """A group of tasks like `asyncio.TaskGroup` that raises the first error itself, not an exception group.

    A task that waits for the group can be cancelled at any time, even while one of the group's tasks fails: before
    Python 3.13, `asyncio.TaskGroup` swallows such a cancellation.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._errors: list[BaseException] = []
        self._ended = asyncio.Event()
        """Set when a task has failed or all have ended."""
        self._is_over = False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of the group. If it is cancelled from outside the group, that counts as an error."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._note)
        self._tasks.append(task)
        if not self._errors:
            self._ended.clear()
        return task

    async def __aenter__(self) -> Self:
        """Enter the group."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all tasks; when one fails, cancel the others."""
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
        return RuntimeError(f"{getattr(task.get_coro(), '__qualname__', task)} was cancelled from outside its group")

    async def _settle(self) -> None:
        """Cancel the running tasks and wait for their end, even if this task is cancelled meanwhile."""
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
