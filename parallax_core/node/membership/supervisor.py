"""Starts, watches, restarts and ends worker processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parallax_core.base.environment import worker_environment
from parallax_core.base.errors import BackendFailed
from parallax_core.base.processes import ChildProcess

logger = logging.getLogger(__name__)

END_S = 1.0
"""Seconds a process has to end by itself before it is killed."""
KILL_S = 10.0
"""Seconds to wait for a killed process before its successor starts; the system may have much memory to free."""
GONE_S = 0.5
"""Seconds to wait for a killed process that gets no successor."""


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
    _children: dict[str, ChildProcess] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes; some may have ended."""
        return tuple(child.pid for child in self._children.values())

    def find_pid(self, node: str) -> int | None:
        """Return the process id of ``node``, or None if it does not run."""
        child = self._children.get(node)
        return child.pid if child is not None and child.is_running else None

    async def restart(self, node: str) -> None:
        """Start the process of ``node``, after killing the one it has, if any.

        Raises:
            BackendFailed: if the process cannot be started.
        """
        await self.kill(node)
        command = list(self.command(node))
        try:
            child = await ChildProcess.start(command, worker_environment(), name=node)
        except OSError as error:
            message = f"the worker {node} cannot be started with {command[0]}: {error.strerror or error}"
            raise BackendFailed(message, "name a Python interpreter that has Parallax and the backend") from error
        self._children[node] = child
        logger.info("worker started node=%s pid=%d", node, child.pid)

    async def kill(self, node: str) -> None:
        """Kill the process of ``node`` and its child processes, if it has one.

        A process that the system cannot end, for example because it waits for a device, is left behind.
        """
        if (child := self._children.pop(node, None)) is not None:
            _warn(child, KILL_S, has_ended=await child.kill(KILL_S))

    async def wait_end(self, node: str) -> str:
        """Wait until the process of ``node`` ends, and return why it did."""
        child = self._children.get(node)
        if child is None:
            return "its process is gone"
        await child.wait()
        return child.explain() or ""

    async def explain(self, node: str) -> str | None:
        """Return why the process of ``node`` ended; None if it still runs half a second later."""
        child = self._children.get(node)
        if child is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await child.wait()
        return child.explain()

    async def end(self, node: str) -> None:
        """Ask the process of ``node`` to end, and kill it if it does not. Does nothing if there is no process."""
        child = self._children.pop(node, None)
        if child is None:
            return
        _warn(child, GONE_S, has_ended=await child.end(END_S, GONE_S))


def _warn(child: ChildProcess, wait_s: float, *, has_ended: bool) -> None:
    if not has_ended:
        logger.warning("worker was killed and is still there after %g s pid=%d", wait_s, child.pid)
