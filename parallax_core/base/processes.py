"""Ends child processes that asyncio has started."""

from __future__ import annotations

import contextlib
import os
import signal
from asyncio.subprocess import Process


def kill_process(process: Process) -> None:
    """Kill a process, unless it has ended.

    `Process.kill` looks whether the process has ended, and so may take its exit code before asyncio does, which then
    warns of an unknown process and makes up a code of 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
