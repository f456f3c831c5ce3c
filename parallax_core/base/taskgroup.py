"""Runs tasks together: groups that raise their first error, and tasks started a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from parallax_core.base.tasks import start_task

T = TypeVar("T")
TURN = 16
"""Tasks that begin in the same turn of the loop."""


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
        """Start a task of the group. If it is cancelled from outside the group, that counts as an error.

        So does a `SystemExit`: it is an error of the task like others, and does not end the event loop.
        """
        task = start_task(work)
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
        return RuntimeError(f"{task.get_name()} was cancelled from outside its group")

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


async def wait_for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def run_in_turns(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time; only a few begin in each turn of the loop, to leave time for others.

    If it is cancelled, so are all. None of them may raise.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        for work in works:
            tasks.append(asyncio.create_task(work))
            if len(tasks) % TURN == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
