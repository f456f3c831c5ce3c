"""Child processes, which end with their child processes, and with their parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Self

from parallax_core.base.child_log import ChildLog

LINE_BYTES = 2**16
"""The longest line that is read from a child process by default."""


class ChildProcess:
    """A child process with a process group of its own, which ends as a whole.

    This process holds its standard input open. Closing that tells it to end; the kernel closes it too when this process
    dies. See `end_with_parent` for the child's side.
    """

    def __init__(self, process: Process, log: ChildLog | None = None) -> None:
        """Take a process that `start` has started; ``log`` is closed with it."""
        assert process.stdin is not None
        self.stdin = process.stdin
        self._process = process
        self._log = log

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        reads: bool = False,
        name: str | None = None,
        line_bytes: int = LINE_BYTES,
    ) -> Self:
        """Start a process.

        Args:
            command: The program and its arguments.
            environment: All its variables.
            reads: Whether `stdout` is read; otherwise what it writes there is dropped.
            name: What is put before each line of its standard error, which is copied to that of this process; None: it
                has that of this process.
            line_bytes: The longest line of `stdout`.

        Raises:
            OSError: if it cannot be started.
        """
        log = None if name is None else ChildLog(name)
        try:
            async with log or contextlib.nullcontext():
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=PIPE,
                    stdout=PIPE if reads else DEVNULL,
                    stderr=log.writer if log else None,
                    limit=line_bytes,
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            if log is not None:
                await log.close()
            raise
        return cls(process, log)

    @property
    def pid(self) -> int:
        """The id of the process and of its group; it may have ended."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What it writes to standard output, if `start` was told to read that."""
        assert self._process.stdout is not None
        return self._process.stdout

    async def wait(self) -> None:
        """Wait until it has ended."""
        await self._process.wait()

    async def end(self, grace_s: float, killed_s: float) -> bool:
        """Tell the process to end, and after ``grace_s`` seconds kill it. See `kill` for the rest."""
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        return await self.kill(killed_s)

    async def kill(self, killed_s: float) -> bool:
        """Kill the process and its child processes, even if it has ended itself.

        Returns whether it has ended within ``killed_s`` seconds. The system cannot end one that waits for a device.
        """
        self.send_kill()
        self.stdin.close()  # the loop may end before it notices that the other end is closed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(killed_s):
                await self._process.wait()
        if self._log is not None:
            await self._log.close()
        return not self.is_running

    def send_kill(self) -> None:
        """Kill the process and its child processes without waiting for their end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        kill_process(self._process)

    def explain(self) -> str | None:
        """Return why the process ended; None while it runs."""
        code = self._process.returncode
        if code is None:
            return None
        if code >= 0:
            return f"its process ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process was ended by signal {-code}"


def kill_process(process: Process) -> None:
    """Kill a process, unless it has ended.

    `Process.kill` looks whether the process has ended, and so may take its exit code before asyncio does, which then
    warns of an unknown process and makes up a code of 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """End this process, a `ChildProcess`, when its parent closes its standard input or dies.

    Child processes end with it if it leads a process group.
    """
    stdin = sys.stdin.fileno()

    def wait() -> None:
        while os.read(stdin, 1):  # not by sys.stdin, whose lock this thread would hold when the interpreter ends
            pass
        _kill_group()
        os._exit(0)

    threading.Thread(target=wait, name="parallax-parent", daemon=True).start()


def end_children_of_orphan(parent: int) -> None:
    """End this process with its child processes if its parent, the process ``parent``, is gone.

    A process that ends by itself calls it at its end. As long as the parent lives, it ends the child processes.
    """
    if os.getppid() != parent:
        _kill_group()


def _kill_group() -> None:
    """Kill this process and its child processes, if it leads a process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
