"""The event loop of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class ServingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits neither for clients in the middle of a TLS handshake nor, at its end, for threads.

    asyncio gives a handshake a minute, of which uvicorn says nothing; and what runs on its own executor keeps it from
    its end for as long as it takes.
    """

    def __init__(self, handshake_s: float) -> None:
        super().__init__()
        self._handshake_s = handshake_s
        self._executor = ThreadPoolExecutor(thread_name_prefix="parallax")
        self.set_default_executor(self._executor)

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:  # noqa: ANN401
        """Listen; see `asyncio.loop.create_server`."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", self._handshake_s)
        return await super().create_server(*args, **options)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- asyncio's own
        """Begin nothing more on the executor; what runs there is left to the end of the process."""
        del timeout
        self._executor.shutdown(wait=False, cancel_futures=True)


def run_loop(work: Coroutine[Any, Any, T], handshake_s: float) -> T:
    """Run ``work`` on a `ServingLoop`, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=partial(ServingLoop, handshake_s)) as runner:
        return runner.run(work)
