"""Measures the CPU time of event loop callbacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gc import collect, freeze  # by name, since a run of the tests takes the effect from `gc.freeze`

MOST_S = 0.05
"""The most CPU time a callback may take, in seconds, before it delays others."""


@dataclass
class Callbacks:
    """The longest callback so far."""

    longest_s: float = 0.0
    """Its CPU time in seconds; on a busy machine wall-clock time would be meaningless."""
    what: str = ""
    """Its description."""

    def note(self, seconds: float, handle: asyncio.Handle) -> None:
        if seconds > self.longest_s:
            task = getattr(getattr(handle, "_callback", None), "__self__", None)
            self.longest_s, self.what = seconds, f"{handle!r} of {task!r}"

    def check(self) -> None:
        """Fail if a callback took too long."""
        assert self.longest_s < MOST_S, f"{self.longest_s * 1000:.0f} ms in {self.what}"


@contextmanager
def watched() -> Iterator[Callbacks]:
    """Time the callbacks of all event loops; existing objects are frozen, so that garbage collection skips them."""
    collect()
    freeze()  # as the server does when it is ready
    found, run = Callbacks(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        found.note(time.thread_time() - begun, handle)

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
