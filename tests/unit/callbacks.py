"""How long the callbacks of an event loop take."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST_S = 0.05
"""So much processor time a callback may take before others notice."""


@dataclass
class Callbacks:
    """What was seen of them."""

    longest_s: float = 0.0
    """The processor time of the longest: on a busy machine its time by the clock says nothing."""
    what: str = ""

    def note(self, seconds: float, handle: asyncio.Handle) -> None:
        if seconds > self.longest_s:
            task = getattr(getattr(handle, "_callback", None), "__self__", None)
            self.longest_s, self.what = seconds, f"{handle!r} of {task!r}"

    def check(self) -> None:
        """Fail if one took too long."""
        assert self.longest_s < MOST_S, f"{self.longest_s * 1000:.0f} ms in {self.what}"


@contextmanager
def watched() -> Iterator[Callbacks]:
    """Watch the callbacks of all event loops; what is there already is no business of the garbage collector's."""
    gc.collect()
    gc.freeze()  # as the server does when it is ready
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
        gc.unfreeze()
