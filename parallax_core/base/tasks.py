"""Tasks whose end is noticed, whatever ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from parallax_core.base.faults import ENDINGS, describe_error

T = TypeVar("T")

TASK_ENDINGS = (asyncio.CancelledError, *ENDINGS)
"""What ends a task, a generator or a program: pass it on. All else is a fault; see `ENDINGS`."""


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run ``work`` as a task, named after it, in which a `SystemExit` is a RuntimeError; see `contain_exit`."""
    name = getattr(work, "__qualname__", str(work))
    task = asyncio.get_running_loop().create_task(contain_exit(work), name=name)
    task.add_done_callback(lambda _: work.close())  # which has not begun if the task was cancelled before
    return task


async def contain_exit(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` gives.

    Raises:
        RuntimeError: instead of a `SystemExit`, which would end the event loop of a task without a word.
    """
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"it wanted to end the process: {describe_error(error)}") from error


class WatchedWork:
    """Runs work that must not end by itself. Belongs to one event loop."""

    def __init__(self, work: Coroutine[Any, Any, None], on_end: Callable[[BaseException], None]) -> None:
        """Begin ``work``; call ``on_end`` with the reason if it ends before `cancel`, whatever that is.

        Work that returns or that somebody else cancels has ended, too; the reason is a RuntimeError then.
        """
        self._on_end = on_end
        self._is_over = False
        self._task = start_task(work)
        self._task.add_done_callback(self._note_end)

    async def cancel(self) -> None:
        """Cancel the work, and wait for its end. Idempotent."""
        self._is_over = True
        self._task.cancel()
        await asyncio.wait([self._task])

    def _note_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self._is_over:
            how = "was cancelled from outside" if task.cancelled() else "has ended by itself"
            self._on_end(error or RuntimeError(f"{task.get_name()} {how}"))
