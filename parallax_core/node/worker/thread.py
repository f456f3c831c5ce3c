"""Runs all calls of a stage on one thread."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

Call = Callable[[], None]


class StageThread:
    """Runs calls one after another on a thread of its own, and hands their results to the event loop.

    The thread is a daemon: a call that never returns cannot keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._numbers = count()
        self._futures: dict[int, asyncio.Future[Any]] = {}
        """By the number of each unfinished call. A call holds no reference to its future: otherwise an error, whose
        traceback refers to the call, would be part of a cycle and keep alive the tensors of a failed load."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread may still call: it ends after `close`, once its last call has returned."""
        return self._thread.is_alive()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``function`` after all earlier calls; return a future of its result or error."""
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        self._futures[number] = future = loop.create_future()
        deliver = partial(self._deliver, number)

        def call() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 -- raised again where the call is awaited
                _notify(loop, partial(deliver, None, error))
            else:
                _notify(loop, partial(deliver, result, None))

        self._calls.put(call)
        return future

    def find_place(self) -> str:
        """Return the thread's stack, innermost frame last, to show where it hangs; empty if it has ended."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 -- documented in spite of its name
        return "".join(traceback.format_stack(frame)) if frame else ""

    def find_seconds(self) -> float:
        """Return the seconds of a processor that the thread has used; 0: it has ended, or the system does not tell."""
        if sys.platform == "linux" and self._thread.ident is not None and self._thread.is_alive():
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))
        return 0.0

    def close(self) -> None:
        """End the thread after the calls already made; do not wait for it."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # keep no reference to its result until the next call

    def _deliver(self, number: int, result: object, error: BaseException | None) -> None:
        """Set the result of a future; called on the event loop."""
        future = self._futures.pop(number)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _notify(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        return  # the loop is closed: no caller waits any more


def note_end(closing: asyncio.Future[None]) -> None:
    """Log why something could not be closed on its thread."""
    if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
        logger.warning("stage not closed cleanly: %s: %s", type(error).__name__, error)
