"""Runs calls on a thread, and gives up those that take too long."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from parallax_core.base.errors import BackendFailed
from parallax_core.node.worker.thread import StageThread

T = TypeVar("T")

MOST_WAIT_S = 300.0
"""The most seconds of a call in the background, however few of them it had a processor."""
MOST_STUCK = 4
"""The most threads that are given up and still compute: each keeps its memory, and may take a processor for ever."""

logger = logging.getLogger(__name__)


class BoundedThread:
    """A thread for one call at a time. Nothing can end a thread, so one whose call takes too long is left alone.

    Belongs to one event loop.
    """

    def __init__(self, name: str, work: str, limit_s: float, *, is_background: bool = False) -> None:
        """Give calls ``limit_s`` seconds.

        Those in the background run while a processor has nothing else to do, and the seconds are those of a processor,
        up to `MOST_WAIT_S` by the clock (Linux). ``work`` is the calls' work as errors name it, such as ``compiling the
        grammar``.
        """
        self._name = name
        self._work = work
        self._limit_s = limit_s
        self._is_background = is_background and sys.platform == "linux"  # where threads have policies of their own
        self._thread: StageThread | None = None
        self._stuck: list[StageThread] = []
        """Threads that were given up; those whose calls return after all end."""

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``function``; the call before must have ended.

        Returns:
            A future of its result or error; BackendFailed after the limit, or if too many calls have not returned.
        """
        loop = asyncio.get_running_loop()
        self._stuck = [thread for thread in self._stuck if thread.is_alive]
        if len(self._stuck) >= MOST_STUCK:
            refused: asyncio.Future[T] = loop.create_future()
            refused.set_exception(BackendFailed(f"{self._work} hangs: {len(self._stuck)} threads were given up"))
            return refused
        thread = self._thread = self._thread or self._begin()
        begun, used = loop.time(), thread.find_seconds()
        running = thread.call(function)

        def check() -> None:
            is_waiting = self._is_background and loop.time() < begun + MOST_WAIT_S
            if is_waiting and thread.find_seconds() - used < self._limit_s:
                timers.append(loop.call_later(self._limit_s, check))
            else:
                self._give_up(thread, running)

        timers = [loop.call_later(self._limit_s, check)]
        running.add_done_callback(lambda _: timers[-1].cancel())
        return running

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _begin(self) -> StageThread:
        thread = StageThread(self._name)
        if self._is_background:
            thread.call(self._yield_processor)
        return thread

    def _yield_processor(self) -> None:
        """Let threads of normal priority preempt this one; with a nice value it would finish its time slice."""
        if sys.platform == "linux":
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))

    def _give_up(self, thread: StageThread, running: asyncio.Future[T]) -> None:
        if running.done():
            return
        logger.error("thread %s hangs:\n%s", self._name, thread.find_place())
        self._stuck.append(thread)
        self._thread = None
        thread.close()
        running.set_exception(BackendFailed(f"{self._work} takes more than {self._limit_s:g} s"))
