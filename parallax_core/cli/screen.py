"""Draws what a command does at the bottom of a terminal, in place, and keeps the log in a file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from parallax_core.base.log import writes_json
from parallax_core.cli.log_file import LogFile
from parallax_core.cli.progress import Display, describe, make_display
from parallax_core.cli.tell import tell
from parallax_core.config.home import log_folder
from parallax_core.contracts.progress import Unit

if TYPE_CHECKING:
    from rich.text import Text

LOOK_S = 1.0
"""Seconds between two looks at what is shown."""
PER_SECOND = 2.0
"""How often the terminal is drawn."""
NEWS_S = 60.0
"""Seconds for which a warning is shown."""
WAITING = "no pipeline"
"""The warning of a server that waits for machines: its screen says at any time what it waits for."""

Look = Callable[[], Awaitable[Iterable[str]]]
"""Returns the lines to show."""

logger = logging.getLogger(__name__)


class Screen:
    """A `Display` that shows tasks until it is given lines, and then these; what is told is printed above."""

    def __init__(self, terminal: TextIO, log: LogFile | None = None) -> None:
        """Draw on ``terminal``, and say that ``log`` has the log."""
        from rich.console import Console
        from rich.live import Live

        self._terminal = terminal
        self._log = log
        self._tasks: dict[str, str] = {}
        self._lines: tuple[str, ...] = ()
        self._console = Console(file=terminal, force_terminal=True, highlight=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the terminal."""
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.stop()

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Show how far a task is, unless it is done."""
        if total is not None and done >= total:
            self._tasks.pop(task, None)
        else:
            self._tasks[task] = f"{task}: {describe(done, total, unit)}"

    def finish(self) -> None:
        """Do nothing: what is shown goes on."""

    def show(self, lines: Iterable[str]) -> None:
        """Show these lines in place of the last ones, or of tasks."""
        self._lines = tuple(lines)
        if self._log is not None:
            self._log.limit()

    def tell(self, line: str, stream: TextIO | None) -> None:
        """Print a line above the others, or to ``stream`` if that is neither a terminal nor standard error."""
        if stream is not sys.stderr and stream is not None and not stream.isatty():
            tell(line, stream)
            return
        with contextlib.suppress(OSError):  # the terminal is gone
            self._console.print(line, soft_wrap=True, markup=False)

    def _draw(self) -> Text:
        from rich.text import Text

        with contextlib.suppress(OSError):
            self._console.size = os.get_terminal_size(self._terminal.fileno())
        where = [f"log: {_shorten(self._log.path)}"] if self._log is not None else []
        lines = [*(self._lines or list(self._tasks.values())), *where]
        return Text("\n".join(map(_show_controls, lines)), overflow="fold")


def _shorten(path: Path) -> str:
    """Return a path with ~ in place of the user's folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _show_controls(line: str) -> str:
    """Return a line with ? in place of control characters: other machines say how they are called."""
    return line if line.isprintable() else "".join(each if each.isprintable() else "?" for each in line)


@contextmanager
def open_display(name: str, *, verbose: bool) -> Iterator[Display]:
    """Yield a `Screen` if standard error is a terminal, with the log of the command ``name`` in a file.

    Elsewhere, and if ``verbose`` or the file cannot be written, the log stays where it is.
    """
    with contextlib.ExitStack() as stack:
        display = _open_screen(name, stack) if _is_wanted(verbose=verbose) else None
        yield display or stack.enter_context(make_display())


def _open_screen(name: str, stack: contextlib.ExitStack) -> Screen | None:
    log = LogFile(log_folder() / f"{name}.log")
    try:
        stack.enter_context(log)
    except OSError:
        return None
    return stack.enter_context(Screen(stack.enter_context(log.open_terminal()), log))


def _is_wanted(*, verbose: bool) -> bool:
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_plain = verbose or writes_json() or os.environ.get("CI") or os.environ.get("TERM") == "dumb"
    return is_terminal and not is_plain


@asynccontextmanager
async def watching(display: Display | None, look: Look) -> AsyncIterator[None]:
    """Show on a `Screen` what ``look`` returns, again every `LOOK_S` seconds, and the last warning of the log."""
    if not isinstance(display, Screen):
        yield
        return
    warnings = LastWarning()
    logging.getLogger().addHandler(warnings)
    task = asyncio.create_task(_watch(display, look, warnings))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        logging.getLogger().removeHandler(warnings)


async def _watch(screen: Screen, look: Look, warnings: LastWarning) -> None:
    try:
        while True:
            lines = list(await look())
            screen.show([*lines, *warnings.list_news("\n".join(lines))])
            await asyncio.sleep(LOOK_S)
    except Exception:  # what is shown may fail, what is served goes on
        logger.exception("the display is not updated any more")


class LastWarning(logging.Handler):
    """Keeps the last warning of the log."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Forget a warning after `NEWS_S` seconds of ``clock``, which counts since 1970."""
        super().__init__(logging.WARNING)
        self._clock = clock
        self._last: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, unless it says what is shown anyway."""
        if not record.getMessage().startswith(WAITING):
            self._last = record

    def list_news(self, shown: str) -> Iterator[str]:
        """Yield a line for the warning, unless it is old, or ``shown`` has its reason."""
        if (last := self._last) is None or self._clock() - last.created > NEWS_S:
            return
        kind, _, reason = last.getMessage().partition(": ")
        if (reason or kind) not in shown:
            yield f"{time.strftime('%H:%M:%S', time.localtime(last.created))} {last.getMessage()}"
