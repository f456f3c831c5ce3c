"""The child process that runs SGLang: ``python -m parallax_backend_sglang.child FD``, where FD is a socket."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import queue
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

from parallax_backend_sglang.frames import Failed, Frame, LoadEngine, pack, receive
from parallax_core.api import ParallaxError

Message = TypeVar("Message")


def main() -> None:
    """Do what the parent process asks for, until it closes the socket, which ends this process at once."""
    link = socket.socket(fileno=int(sys.argv[1]))
    inbox = Inbox[Frame](link, receive)
    try:
        message = inbox.wait()
        assert isinstance(message, LoadEngine), "the first message says what to load"
        importlib.import_module("parallax_backend_sglang.serving").serve(link, inbox, message)
    except ParallaxError as error:
        _report(link, Failed(error.message, error.hint))
    except Exception as error:
        _report(link, Failed(f"the model could not be loaded: {type(error).__name__}: {error}"))
        raise
    finally:
        end_group()


class Inbox(Generic[Message]):
    """Reads messages on a thread of its own, so that the end of the link ends this process while it loads, too."""

    def __init__(self, link: socket.socket, receive: Callable[[socket.socket], Message | None]) -> None:
        self._link = link
        self._receive = receive
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._deliver: Callable[[Message], object] = self._messages.put
        threading.Thread(target=self._read, name="parallax-inbox", daemon=True).start()

    def wait(self) -> Message:
        """Wait for a message."""
        return self._messages.get()

    def deliver_to(self, target: asyncio.Queue[Message]) -> None:
        """Deliver the messages to a queue of the running event loop from now on."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._deliver = lambda message: loop.call_soon_threadsafe(target.put_nowait, message)
            while not self._messages.empty():
                target.put_nowait(self._messages.get())

    def _read(self) -> None:
        try:
            while (message := self._receive(self._link)) is not None:
                with self._lock:
                    self._deliver(message)
        except Exception:  # noqa: BLE001 -- it says why this process ends
            traceback.print_exc()
        end_group()


def end_group() -> None:
    """Kill this process and the processes that SGLang has started, and remove their temporary files."""
    sys.stdout.flush()
    sys.stderr.flush()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _report(link: socket.socket, failure: Failed) -> None:
    with contextlib.suppress(OSError):
        link.sendall(pack(failure))


if __name__ == "__main__":
    main()
