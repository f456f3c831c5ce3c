"""Starts, watches, restarts and ends worker processes on this machine."""

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

from parallax_core.base.environment import worker_environment
from parallax_core.base.errors import BackendFailed
from parallax_core.base.processes import kill_process
from parallax_core.node.membership.child_log import ChildLog

logger = logging.getLogger(__name__)

END_S = 1.0
"""Seconds a process has to end by itself before it is killed."""
KILL_S = 10.0
"""Seconds to wait for a killed process before its successor starts; the system may have much memory to free."""
GONE_S = 0.5
"""Seconds to wait for a killed process that gets no successor."""


@dataclass(slots=True)
class WorkerProcess:
    """A worker process."""

    process: asyncio.subprocess.Process
    log: ChildLog | None = None
    """What it writes to standard error; None: that is not copied."""

    def kill(self) -> None:
        """Kill the process and its child processes, which share its process group, even if it has ended itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        kill_process(self.process)

    def explain(self) -> str | None:
        """Return why the process ended; None while it runs."""
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
    """Starts and ends worker processes, at most one per node.

    Closing a worker's standard input tells it to end; the kernel closes it too when this process dies, so no worker
    outlives it. A worker leads a process group, with which its child processes end. What they write to standard error
    appears in that of this process, line by line with the worker's name. A worker gets no keys: its variables are
    those of `worker_environment`.
    """

    command: Callable[[str], Sequence[str]]
    """Returns the command line for a node's name."""
    _children: dict[str, WorkerProcess] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes; some may have ended."""
        return tuple(child.process.pid for child in self._children.values())

    def find_pid(self, node: str) -> int | None:
        """Return the process id of ``node``, or None if it does not run."""
        child = self._children.get(node)
        return child.process.pid if child is not None and child.process.returncode is None else None

    async def restart(self, node: str) -> None:
        """Start the process of ``node``, after killing the one it has, if any.

        Raises:
            BackendFailed: if the process cannot be started.
        """
        await self.kill(node)
        command = list(self.command(node))
        log = ChildLog(node)
        try:
            async with log:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=log.writer,
                    env=worker_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            await log.close()
            message = f"the worker {node} cannot be started with {command[0]}: {error.strerror or error}"
            raise BackendFailed(message, "name a Python interpreter that has Parallax and the backend") from error
        self._children[node] = WorkerProcess(process, log)
        logger.info("worker started node=%s pid=%d", node, process.pid)

    async def kill(self, node: str) -> None:
        """Kill the process of ``node`` and its child processes, if it has one.

        A process that the system cannot end, for example because it waits for a device, is left behind.
        """
        if (child := self._children.pop(node, None)) is not None:
            await _kill(child, KILL_S)

    async def wait_end(self, node: str) -> str:
        """Wait until the process of ``node`` ends, and return why it did."""
        child = self._children.get(node)
        if child is None:
            return "its process is gone"
        await child.process.wait()
        return child.explain() or ""

    async def explain(self, node: str) -> str | None:
        """Return why the process of ``node`` ended; None if it still runs half a second later."""
        child = self._children.get(node)
        if child is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await child.process.wait()
        return child.explain()

    async def end(self, node: str) -> None:
        """Ask the process of ``node`` to end, and kill it if it does not. Does nothing if there is no process."""
        child = self._children.pop(node, None)
        if child is None:
            return
        if child.process.stdin is not None:
            child.process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await child.process.wait()
        except TimeoutError:
            pass
        await _kill(child, GONE_S)


def end_with_parent() -> None:
    """End this process, which a supervisor started, when the supervisor closes its standard input or dies.

    Child processes end with it if it leads a process group, as a supervisor's processes do.
    """
    stdin = sys.stdin.fileno()

    def wait() -> None:
        while os.read(stdin, 1):  # not by sys.stdin, whose lock this thread would hold when the interpreter ends
            pass
        _kill_group()
        os._exit(0)

    threading.Thread(target=wait, name="parallax-parent", daemon=True).start()


def end_children_of_orphan(parent: int) -> None:
    """End this process with its child processes if the supervisor, the process ``parent``, is gone.

    A process that ends by itself calls it at its end. As long as the supervisor lives, it ends the child processes.
    """
    if os.getppid() != parent:
        _kill_group()


def _kill_group() -> None:
    """Kill this process and its child processes, if it leads a process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


async def _kill(child: WorkerProcess, wait_s: float) -> None:
    child.kill()
    try:
        async with asyncio.timeout(wait_s):
            await child.process.wait()
    except TimeoutError:
        logger.warning("worker was killed and is still there after %g s pid=%d", wait_s, child.process.pid)
    if child.log is not None:
        await child.log.close()
