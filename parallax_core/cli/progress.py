"""Shows progress on standard error: bars on a terminal, else lines at intervals."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from parallax_core.base.log import writes_json
from parallax_core.cli.tell import tell
from parallax_core.contracts.progress import Unit

LINE_INTERVAL_S = 5.0


class Display(Protocol):
    """A `parallax_core.contracts.progress.Progress` that is also a context manager."""

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Show that ``done`` of ``total`` units of ``task`` are finished."""

    def tell(self, line: str, stream: TextIO | None) -> None:
        """Print a line; see `parallax_core.cli.tell.tell`."""

    def finish(self) -> None:
        """Leave the screen as it is: there is nothing more to show. Idempotent."""

    def __enter__(self) -> Self:
        """Start to show progress."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the screen as it is."""


def make_display() -> Display:
    """Return bars if standard error is a terminal and no JSON goes there, lines otherwise."""
    return Bars() if sys.stderr.isatty() and not writes_json() else Lines()


class _Plain:
    """What displays share that print lines as they are."""

    def tell(self, line: str, stream: TextIO | None) -> None:
        """Print a line at once."""
        tell(line, stream)

    def finish(self) -> None:
        """Do nothing: what was printed stays."""


class Bars(_Plain):
    """Shows a bar for each task, added on the first report of the task."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._bars = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """Leave the bars as they are."""
        self._bars.stop()

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Move the task's bar."""
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=total, amount="")
        self._bars.update(self._tasks[task], completed=done, total=total, amount=describe(done, total, unit))


class Lines(_Plain):
    """Prints a line when a task begins and ends, and every `LINE_INTERVAL_S` seconds in between."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Print the task's progress if a line is due."""
        then, finished = self._last.get(task, (-LINE_INTERVAL_S, False))
        now, at_end = time.monotonic(), total is not None and done >= total
        if not finished and (at_end or now - then >= LINE_INTERVAL_S):
            self._last[task] = (now, at_end)
            with contextlib.suppress(OSError):  # a full disk or a closed pipe does not end the work
                tell(f"{task}: {describe(done, total, unit)}", sys.stderr)


def describe(done: int, total: int | None, unit: Unit) -> str:
    """Return the progress of a task as text: ``12.3 of 98.4 MB``, ``3 of 30``."""
    scale, suffix, form = (10**6, " MB", ".1f") if unit == "bytes" else (1, "", ".0f")
    amount = format(done / scale, form)
    return f"{amount}{suffix}" if total is None else f"{amount} of {format(total / scale, form)}{suffix}"
