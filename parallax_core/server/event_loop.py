"""The server's event loop, with timeouts that asyncio lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class ServingLoop(asyncio.SelectorEventLoop):
    """An event loop that limits the time of a TLS handshake, and ends without waiting for its threads.

    asyncio gives a handshake a minute, which uvicorn does not let users change, and waits at its end for all calls on
    its default executor.
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
        """Start no more calls on the executor; running ones end with the process."""
        del timeout
        self._executor.shutdown(wait=False, cancel_futures=True)


def run_loop(work: Coroutine[Any, Any, T], handshake_s: float) -> T:
    """Run ``work`` on a `ServingLoop`, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=partial(ServingLoop, handshake_s)) as runner:
        return runner.run(work)
