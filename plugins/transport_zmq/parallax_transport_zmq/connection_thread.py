"""A thread that judges connections before they are links: strangers take no event loop time."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable

import zmq

from parallax_transport_zmq.connections import Connections
from parallax_transport_zmq.security import ZapHandler

logger = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
MONITOR_ADDRESS = "inproc://parallax.connections"
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
MOST_PER_SECOND = 1000
"""Keys that are judged in a second; ZeroMQ ends the connections of those that wait for too long."""
SLICE_S = 0.05
"""Seconds between two looks at all connections, and in which its share of `MOST_PER_SECOND` is judged."""
MOST_WAITING = 100_000
"""Events that wait for the thread; with more, ZeroMQ's own thread would wait for it."""

Context = zmq.Context[zmq.Socket[bytes]]


class ConnectionThread:
    """Answers ZeroMQ's questions about keys, and ends connections; begins with `start`."""

    def __init__(self, context: Context, zap: ZapHandler, refresh: Callable[[], None]) -> None:
        """Judge keys by ``zap``; ``refresh`` is called again and again, to read anew what that goes by."""
        self.connections = Connections()
        self._zap, self._refresh = zap, refresh
        self._questions = context.socket(zmq.REP)
        self._questions.bind(ZAP_ADDRESS)
        self._events = context.socket(zmq.PAIR)
        self._events.rcvhwm = MOST_WAITING
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="parallax-zmq-connections", daemon=True)

    def start(self, listener: zmq.Socket[bytes]) -> None:
        """Watch the connections to a socket, which does not listen yet."""
        listener.monitor(MONITOR_ADDRESS, EVENTS)
        self._events.connect(MONITOR_ADDRESS)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._wake.close()
        if self._thread.ident is not None:
            self._thread.join()
        self._woken.close()
        for each in (self._questions, self._events):
            each.close(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        for each in (self._woken, self._events, self._questions):
            poller.register(each, zmq.POLLIN)
        look_at = 0.0
        while True:
            now = time.monotonic()
            if now >= look_at:
                look_at, left = now + SLICE_S, round(MOST_PER_SECOND * SLICE_S)
                self._look()
            poller.modify(self._questions, zmq.POLLIN if left else 0)
            ready = dict(poller.poll(max(1, round(1000 * (look_at - now)))))
            if self._woken.fileno() in ready:
                return
            if self._events in ready:
                self._read_events()
            while left and self._questions in ready and self._answer():
                left -= 1

    def _look(self) -> None:
        """Do what is due now and then; it must not end the thread, whatever happens."""
        try:
            self._refresh()
            self.connections.end_surplus()
        except Exception:  # else no machine could join any more
            logger.exception("connections are not looked at")

    def _answer(self) -> bool:
        """Answer a question, if there is one."""
        try:
            question = self._questions.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._questions.send_multipart(self._zap.answer(question))
        return True

    def _read_events(self) -> None:
        while True:
            try:
                event, _ = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, file = struct.unpack("=Hi", event)
            if kind == zmq.EVENT_ACCEPTED:
                self.connections.note_begin(file)
            else:
                self.connections.note_end(file)
