"""Starts and ends the child process that runs SGLang, and relays its log."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from parallax_backend_sglang.environment import make_environment, make_folder, remove_folder

logger = logging.getLogger(__name__)

KILL_S = 10.0
"""Seconds to wait for a killed process."""
EXPLAIN_S = 1.0
"""Seconds to wait for the end of a process, and of its log, that is about to be explained."""
KEPT_LINES = 400
"""Lines of the log in which the reason of a failure is looked for."""
ERROR_LINE = re.compile(
    r"((?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?)|\[.*?\] (Subprocess .*? crashed with exit code -?\d+).*"
)
"""The last line of a traceback, or what SGLang says of a process of its own that has ended."""
CHILD = ["-P", "-m", "parallax_backend_sglang.child"]
"""The arguments of the Python interpreter for an engine, before the number of the socket."""
STAGE_CHILD = ["-P", "-m", "parallax_backend_sglang.stage_child"]
"""The same for a stage."""


@dataclass(slots=True)
class LogRelay:
    """Copies the output of a child process to the log, line by line, and keeps the last lines."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def run(self, source: IO[str]) -> None:
        """Copy until the process has closed its output."""
        with source:
            for line in source:
                if text := line.rstrip():
                    self.lines.append(text)
                    sys.stderr.write(f"sglang: {text}\n")

    def find_error(self) -> str:
        """Return the last line of the last traceback, or an empty text."""
        found = (match[1] or match[2] for line in reversed(self.lines) if (match := ERROR_LINE.fullmatch(line.strip())))
        return next(found, "")


class ChildProcess:
    """A process of its own for SGLang, which kills all child processes of its own process, and replaces its signals.

    It leads a process group, which ends as a whole. It ends too when this process does: it then reads the end of
    ``link``. ``link`` carries the messages of `parallax_backend_sglang.frames`.
    """

    def __init__(self, *, on_cpu: bool, threads: int) -> None:
        """Start the process; see `make_environment` for the arguments.

        Raises:
            OSError: if it cannot be started.
        """
        self._folder = make_folder()
        environment = make_environment(self._folder, on_cpu=on_cpu, threads=threads)
        if on_cpu:
            logger.info("SGLang runs on the CPU, with stand-ins for torchvision, torchaudio and sgl_kernel")
        self._log = LogRelay()
        self.link, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(self._list_arguments(), theirs.fileno(), environment)
        except BaseException:
            self.link.close()
            remove_folder(self._folder)
            raise
        assert self._process.stdout is not None, "the output is a pipe"
        self._relay = threading.Thread(
            target=self._log.run, args=[self._process.stdout], name="sglang-log", daemon=True
        )
        self._relay.start()

    def _list_arguments(self) -> list[str]:
        return CHILD

    def explain(self) -> str:
        """Return why the process has ended, or will be ended; wait for the end of its log, at most `EXPLAIN_S`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXPLAIN_S)
        self._relay.join(EXPLAIN_S)
        if error := self._log.find_error():
            return f"SGLang failed: {error}"
        if (code := self._process.poll()) is None:
            return "SGLang closed its connection"
        return f"SGLang's process was ended by signal {-code}" if code < 0 else f"SGLang ended with exit code {code}"

    def end(self) -> None:
        """Kill the process and its child processes, and wait for it; `link` is shut down, not closed. Idempotent."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            logger.warning("SGLang was killed and is still there after %g s pid=%d", KILL_S, self._process.pid)
        self._relay.join(KILL_S)
        remove_folder(self._folder)


class StageProcess(ChildProcess):
    """The same for a stage, with the messages of `parallax_backend_sglang.stage_frames`."""

    def _list_arguments(self) -> list[str]:
        return STAGE_CHILD


def _start(arguments: Sequence[str], fd: int, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments, str(fd)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[fd],
        env=environment,
        start_new_session=True,
        text=True,
        errors="replace",
    )


StartChild = Callable[[], ChildProcess]
