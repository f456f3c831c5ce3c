"""Runs the listening server on a separate thread, for blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site
from tests.unit.server.listening import Listening

T = TypeVar("T")


class Threaded:
    """A server on a thread, as a context manager."""

    def __init__(self, options: ServerOptions | None = None, site: Site | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.listening = Listening(options, site=site)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.listening.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.listening.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listening.port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)
