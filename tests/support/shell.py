"""A shell in a terminal, in which commands are typed as a user types them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.terminal import Terminal

PROMPT = re.compile(r"\[(\d+)\]\$ ")
"""What the shell shows when a command has ended: its exit code."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C = "\x03"
WAIT_S = 0.1
OURS = str(Path(__file__).parents[2])
"""The folder of the repository: its own environments are not those of a user."""
KEPT = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""The variables of the machine that a user of it has, too: how to reach an index."""


class Shell:
    """A shell on a machine of its own, as far as a name and a home are one. Use it as a context manager."""

    def __init__(self, folder: Path, home: Path, host: str, programs: str = "") -> None:
        """Begin in ``folder``, with a new environment, and ``host`` as the name of the machine.

        Programs are looked for in the folder ``programs`` first, if that is not empty.
        """
        self._terminal = Terminal()
        self._folder, self._host = folder, host
        self._settings = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        others = (each for each in os.environ["PATH"].split(os.pathsep) if not each.startswith(OURS))
        path = os.pathsep.join([*filter(None, [programs]), *others])
        self._settings |= {"PATH": path, "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8", "PS1": "[$?]$ "}
        self._seen, self._is_interrupted = 0, False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the shell."""
        self._terminal.__enter__()
        # A terminal that is opened by the first process of a session sends it Ctrl-C.
        begin = 'hostname "$1" && exec bash --noprofile --norc --noediting -i <"$0" >"$0" 2>&1'
        alone = ["unshare", "--uts", *(["--map-root-user"] if os.getuid() else [])]
        command = [*alone, "sh", "-c", begin, self._terminal.path, self._host]
        self._process = subprocess.Popen(command, cwd=self._folder, env=self._settings, start_new_session=True)
        self.wait("", 20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up: what runs in it ends."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGHUP)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._terminal.__exit__(kind, error, trace)

    @property
    def text(self) -> str:
        """All that the terminal has shown."""
        return CONTROL.sub("", self._terminal.text)

    def type(self, line: str) -> None:
        """Type a line, or press Ctrl-C."""
        self._seen, self._is_interrupted = len(self.text), line == CTRL_C
        self._terminal.type(line if line == CTRL_C else f"{line}\n")

    def wait(self, until: str, timeout_s: float) -> str:
        """Wait until the last command has shown the pattern ``until``, or ended well if that is empty; return it all.

        Raises:
            AssertionError: if it does not within ``timeout_s`` seconds, or ends with an error.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            shown = self.text[self._seen :]
            ended = PROMPT.search(shown)
            if until and re.search(until, shown):
                return shown
            assert not (ended and until), f"it has ended without {until!r}:\n{shown}"
            if ended:
                assert ended[1] == "0" or self._is_interrupted, shown
                return shown
            assert time.monotonic() < deadline, f"after {timeout_s:g} s there is no {until or 'end'!r}:\n{shown}"
            time.sleep(WAIT_S)
