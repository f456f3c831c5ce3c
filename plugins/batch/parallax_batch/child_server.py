"""Runs ``parallax serve`` as a child process, for a command that needs a server of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO

from parallax_client.client import Client
from parallax_core.api import ParallaxError
from parallax_core.api.cli import end_with_parent, run_program

END_S = 10.0
"""Seconds that the server has to end before it is killed."""
LAST_LINES = 20
"""The number of lines of its log that are shown if it ends unexpectedly."""


class ChildServer:
    """A server on a free port of loopback, with a key that only this process knows."""

    def __init__(self, model: str, options: Sequence[str]) -> None:
        """Start to serve a model, with ``options`` of ``parallax serve``."""
        self._key = secrets.token_hex(16)
        command = [sys.executable, "-P", "-m", __name__, "serve", model, *options, "--host", "127.0.0.1", "--port", "0"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PARALLAX_API_KEY": self._key},
            start_new_session=True,
        )
        self._is_ready = False
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        assert self._process.stderr is not None
        self._copying = threading.Thread(target=self._copy, args=(self._process.stderr,), daemon=True)
        self._copying.start()

    def wait_ready(self) -> Client:
        """Return a client once the server is ready.

        Raises:
            ParallaxError: if it ends before.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line.startswith("ready "):
            self._copying.join(END_S)
            raise ParallaxError("the server has not started", "its output, above, says why")
        self._is_ready = True
        return Client(line.split()[1], key=self._key)

    def explain_end(self) -> str:
        """Return the end of its log if it was ready and has ended; empty: the log is shown, or it runs."""
        if not self._is_ready or self._process.poll() is None:
            return ""
        self._copying.join(END_S)
        return b"".join(self._last).decode(errors="replace")

    def close(self) -> None:
        """End the server."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._copying.join(END_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _copy(self, log: IO[bytes]) -> None:
        """Show its log until it is ready; keep the last lines of the rest."""
        for line in log:
            if not self._is_ready:
                with contextlib.suppress(OSError):
                    sys.stderr.write(line.decode(errors="replace"))
                    sys.stderr.flush()
            self._last.append(line)


@contextlib.contextmanager
def run_server(model: str, options: Sequence[str]) -> Iterator[Client]:
    """Run a server of ``model`` and yield its client; an error inside shows why the server ended, if it did.

    Raises:
        ParallaxError: if it does not start.
    """
    server = ChildServer(model, options)
    try:
        yield server.wait_ready()
    except ParallaxError:
        sys.stderr.write(server.explain_end())
        raise
    finally:
        server.close()


if __name__ == "__main__":
    end_with_parent()
    run_program()
