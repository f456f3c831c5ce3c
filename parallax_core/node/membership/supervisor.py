"""Worker processes of this machine: started, watched, started again, and ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parallax_core.base.errors import BackendFailed

logger = logging.getLogger(__name__)

END_S = 1.0
"""How long a process may take to end by itself when told to."""
KILL_S = 10.0
"""How long one that is killed may take to be gone: the system may have a lot of memory to take back."""
GONE_S = 0.5
"""How long that is waited for when nothing is to follow."""


@dataclass(slots=True)
class WorkerProcess:
    """A worker process."""

    process: asyncio.subprocess.Process

    def explain(self) -> str | None:
        """Return how it ended; None while it runs."""
        code = self.process.returncode
        if code is None:
            return None
        if code >= 0:
            return f"its process ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process was ended by signal {-code}"


@dataclass(slots=True)
class WorkerSupervisor:
    """Starts a process for each node it is asked for, and ends it; a node has one process at most.

    A process is told to end by closing its standard input, which the kernel does too when we are gone: so no process
    outlives us. What it writes to standard error goes where ours goes.
    """

    command: Callable[[str], Sequence[str]]
    """The command line of the process of a node."""
    _children: dict[str, WorkerProcess] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are there, some of which may have ended."""
        return tuple(child.process.pid for child in self._children.values())

    async def restart(self, node: str) -> None:
        """Start the process of ``node``; one that is there already is killed first.

        Raises:
            BackendFailed: if it cannot be started.
        """
        await self.kill(node)
        command = list(self.command(node))
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            message = f"the worker {node} cannot be started with {command[0]}: {error.strerror or error}"
            raise BackendFailed(message, "name a Python interpreter that has Parallax and the backend") from error
        self._children[node] = WorkerProcess(process)
        logger.info("worker started node=%s pid=%d", node, process.pid)

    async def kill(self, node: str) -> None:
        """End the process of ``node`` at once. Harmless when there is none.

        One that the system cannot end, as when it waits for a device that does not answer, is left to itself.
        """
        if (child := self._children.pop(node, None)) is not None:
            await _kill(child, KILL_S)

    async def wait_end(self, node: str) -> str:
        """Wait until the process of ``node`` ends, and return how it did."""
        child = self._children.get(node)
        if child is None:
            return "its process is gone"
        await child.process.wait()
        return child.explain() or ""

    async def explain(self, node: str) -> str | None:
        """Return how the process of ``node`` ended, if it has, or is about to."""
        child = self._children.get(node)
        if child is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await child.process.wait()
        return child.explain()

    async def end(self, node: str) -> None:
        """End the process of ``node``: gently, then not. Harmless when there is none."""
        child = self._children.pop(node, None)
        if child is None:
            return
        if child.process.stdin is not None:
            child.process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await child.process.wait()
        except TimeoutError:
            await _kill(child, GONE_S)


def end_with_parent() -> None:
    """Have this process, started by a supervisor, end when the supervisor ends it or is gone."""
    stdin = sys.stdin.fileno()

    def wait() -> None:
        while os.read(stdin, 1):  # not by sys.stdin, whose lock this thread would hold when the interpreter ends
            pass
        os._exit(0)

    threading.Thread(target=wait, name="parallax-parent", daemon=True).start()


async def _kill(child: WorkerProcess, wait_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.process.kill()
    try:
        async with asyncio.timeout(wait_s):
            await child.process.wait()
    except TimeoutError:
        logger.warning("worker was killed and is still there after %g s pid=%d", wait_s, child.process.pid)
