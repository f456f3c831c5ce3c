"""The one thread that opens, steps, edits and closes a stage."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

Job = Callable[[], None]


class Lane:
    """Runs calls one after another on a thread of its own, and hands their results to the event loop.

    The thread is a daemon: a call that never returns cannot keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``function`` after all earlier calls; await the result, or what it raised, on the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(settle: Callable[[], None]) -> None:
            if not future.done():
                settle()

        def job() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 -- it is raised again where the call is awaited
                _notify(loop, deliver, partial(future.set_exception, error))
            else:
                _notify(loop, deliver, partial(future.set_result, result))

        self._jobs.put(job)
        return future

    def close(self) -> None:
        """Let the thread end after the calls already made; do not wait for it."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _notify(
    loop: asyncio.AbstractEventLoop,
    deliver: Callable[[Callable[[], None]], None],
    settle: Callable[[], None],
) -> None:
    try:
        loop.call_soon_threadsafe(deliver, settle)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more
