"""Drives a ZeroMQ socket from an event loop.

Every call on such a socket may consume the readiness of its file descriptor, which then no longer reports data. So it
is read until empty, and checked again after each send.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from parallax_core.api import Data

BATCH_S = 0.002
"""Seconds for which messages are read before other tasks of the loop get a turn."""
COPY_BYTES = 2**19
"""Messages up to this size, in bytes, are copied, which is cheaper than tracking references."""
READABLE = int(zmq.POLLIN)  # an int is ten times as fast as the enumeration


class Pump:
    """Reads a socket and passes each message on; sends without waiting, since queues are unlimited here."""

    def __init__(self, socket: zmq.Socket[bytes], hear: Callable[[list[zmq.Frame]], None]) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        """Held by the thread that calls the socket: the loop's, or one that sends signs of life."""
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._is_due = False
        self._loop.add_reader(self._fd, self._read)
        self._nudge()

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.closed

    def send(self, parts: Sequence[Data]) -> None:
        """Queue a message.

        Raises:
            ConnectionError: if its receiver cannot be reached.
        """
        with self._lock:
            self._send(parts)
            has_news = self._has_news()
        if has_news:
            self._nudge()

    def send_threadsafe(self, parts: Sequence[Data]) -> None:
        """Queue a message from any thread but the loop's; the loop then checks the socket.

        Raises:
            ConnectionError: if its receiver cannot be reached.
        """
        with self._lock:
            self._send(parts)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._nudge)

    def bind(self, endpoint: str) -> str:
        """Listen at ``endpoint``, too, and return it with its port.

        Raises:
            ConnectionError: if that fails.
        """
        with self._lock:
            try:
                self._socket.bind(endpoint)
            except zmq.ZMQError as error:
                raise ConnectionError(str(error)) from error
            return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def drain(self) -> None:
        """Pass on every message that has arrived."""
        while self._pass_one():
            pass

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; sent messages are still delivered for ``linger_s`` seconds. Idempotent."""
        with self._lock:
            if not self._socket.closed:
                self._loop.remove_reader(self._fd)
                self._socket.close(linger=round(1000 * linger_s))

    def _send(self, parts: Sequence[Data]) -> None:
        if self._socket.closed:
            raise ConnectionError("this end is closed")
        last = len(parts) - 1
        try:
            for index, part in enumerate(parts):
                more = zmq.SNDMORE if index < last else 0
                self._socket.send(part, zmq.NOBLOCK | more, copy=len(part) <= COPY_BYTES)
        except zmq.ZMQError as error:
            raise ConnectionError(str(error)) from error

    def _nudge(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_due = False
        is_empty, until = False, self._loop.time() + BATCH_S
        try:
            while not is_empty and self._loop.time() < until:
                is_empty = not self._pass_one()
        finally:
            if not is_empty:
                self._nudge()

    def _pass_one(self) -> bool:
        with self._lock:
            parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False) if self._has_news() else None
        if parts is not None:
            self._hear(parts)
        return parts is not None

    def _has_news(self) -> bool:
        return not self._socket.closed and bool(int(self._socket.getsockopt(zmq.EVENTS)) & READABLE)
