"""Tells whether a process still moves: it counts what it does and prints that often, and another watches.

A process that hangs with its interpreter locked prints nothing any more, which is told apart from one that prints a
count that stands still.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from benchmarks.processes import list_processes

PRINT_S = 0.1
"""Seconds between two lines of a process."""
SILENT_S = 5.0
"""Seconds without a line after which the interpreter of a process counts as locked."""
START_S = 20.0
"""Seconds that a process may take to start."""


@dataclass(slots=True)
class Progress:
    """What a process has done so far; it prints this itself."""

    count: int = 0
    pause_s: float = 0.0
    """The longest time between two counts, in seconds."""
    in_order: bool = True
    _last: float = 0.0

    def add(self, *, in_order: bool = True) -> None:
        """Count one, and whether it was the one that had to come."""
        now = time.monotonic()
        self.pause_s = max(self.pause_s, now - (self._last or now))
        self._last = now
        self.count += 1
        self.in_order &= in_order

    def print_often(self, output: TextIO) -> None:
        """Print from a thread, for as long as the process lives."""

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    say(output, **asdict(self))
                    time.sleep(PRINT_S)

        threading.Thread(target=run, daemon=True).start()


def claim_output() -> TextIO:
    """Return standard output, which from now on is the standard error of everything else: lattica logs there."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


def say(output: TextIO, **news: object) -> None:
    """Print a line that `Watched` reads."""
    output.write(f"{json.dumps(news)}\n")
    output.flush()


class Watched:
    """A process that prints its progress."""

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Start a module of Python with its arguments."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        self.news: dict[str, Any] = {"count": 0}
        self.heard = self.moved = time.monotonic()
        """When it last printed a line, and when its count last rose."""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def count(self) -> int:
        """How much it has done, as it said last."""
        return int(self.news["count"])

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._reading.is_alive()

    @property
    def error(self) -> str:
        """The error that it ended with, as it said; empty if it said none."""
        return str(self.news.get("error", ""))

    @property
    def is_silent(self) -> bool:
        """Whether it prints nothing any more: its interpreter is locked, it is stopped, or it has ended."""
        return time.monotonic() - self.heard > SILENT_S

    @property
    def pause_s(self) -> float:
        """The longest time in which its count stood still, in seconds, the present one included."""
        return max(float(self.news.get("pause_s", 0.0)), time.monotonic() - self.moved)

    def await_news(self, name: str) -> str:
        """Wait until it says ``name``, and return that.

        Raises:
            TimeoutError: if it ends, or does not say so in `START_S`.
        """
        limit = time.monotonic() + START_S
        while name not in self.news:
            if self.is_over or time.monotonic() > limit:
                raise TimeoutError(f"a process did not say {name!r}: {self.error or 'it gave no reason'}")
            time.sleep(0.01)
        return str(self.news[name])

    def signal(self, sign: signal.Signals) -> None:
        """Send a signal to the process, and to those that it has started, unless it has ended."""
        if self._process.poll() is not None:
            return
        for pid in list(list_processes(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def kill(self) -> None:
        """Kill it, with the processes that it has started."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._reading.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            self.heard = time.monotonic()
            if news.get("count", 0) > self.count:
                self.moved = self.heard
            self.news.update(news)
