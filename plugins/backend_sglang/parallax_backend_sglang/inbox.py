"""Reads messages of the parent process in SGLang's child process, which ends with its parent."""

from __future__ import annotations

import asyncio
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

Message = TypeVar("Message")


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
        except Exception:  # noqa: BLE001 -- the log is the only place left to say why this process ends
            traceback.print_exc()
        end_group()


def end_group() -> None:
    """Kill this process and the processes that SGLang has started, and remove their temporary files."""
    sys.stdout.flush()
    sys.stderr.flush()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
