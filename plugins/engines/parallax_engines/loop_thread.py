"""Runs an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from parallax_core.api.replica import contain_exit

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own, so that what blocks it does not hold up the loop of its owner.

    The thread is a daemon: work that never ends cannot keep the process alive.
    """

    def __init__(self, name: str) -> None:
        """Start the thread; call it on the owner's event loop."""
        self._owner = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run ``work`` on the thread's loop; return a future of its result or error on the owner's loop.

        Cancelling the future cancels the work. A `SystemExit` of the work becomes a RuntimeError.
        """
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_begin(work), self._loop))

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` on the thread's loop soon. Does nothing once the thread is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def post_back(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` on the owner's loop soon; for the thread. Does nothing if that loop is closed."""
        if not self._owner.is_closed():
            self._owner.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        """Cancel what runs on the loop, and end the thread soon; do not wait for it. Idempotent."""
        if not self._is_closing:  # a second stop would end the loop before what it cancels has ended
            self._is_closing = True
            self.post(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _begin(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await contain_exit(work())
