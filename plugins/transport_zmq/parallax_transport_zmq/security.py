"""Guards sockets: file permissions for sockets in the file system, CURVE keys over TCP."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq

from parallax_core.api import ParallaxError
from parallax_transport_zmq.keyfile import KeyPair, name_machine
from parallax_transport_zmq.keyring import Keyring

logger = logging.getLogger(__name__)

ZAP_DOMAIN = "parallax"
MOST_REFUSED = 64
"""The keys that were refused last, which are not logged again."""
LOG_S = 0.5
"""Seconds from one refusal that is logged to the next."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The keys of one socket: this machine's, and that of the other end for a socket that connects."""

    pair: KeyPair
    server: bytes = b""

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket encrypt, prove its key, and require a key of its peer."""
        socket.curve_secretkey = self.pair.secret
        socket.curve_publickey = self.pair.public
        if self.server:
            socket.curve_serverkey = self.server
        else:
            socket.curve_server = True
            socket.zap_domain = ZAP_DOMAIN.encode()


def guard_listening(keyring: Keyring, node: str, *, is_loopback: bool, where: str) -> Guard:
    """Return the guard of a listener on TCP. On loopback a missing key is made.

    Raises:
        ParallaxError: if a key is missing, or other users can write to the keys' folder.
    """
    keyring.check_folders()
    if is_loopback:
        return Guard(keyring.ensure_pair(node))
    if (pair := keyring.find_pair(node)) is None:
        message = f"node {node!r} cannot listen at {where}, off loopback, without a key"
        raise ParallaxError(message, "make one with `parallax keys new`, and allow those of the other nodes")
    return Guard(pair)


def guard_connecting(keyring: Keyring, node: str, peer: str, *, is_loopback: bool) -> Guard:
    """Return the guard of a TCP connection from ``node`` to ``peer``. On loopback a missing key is made.

    Raises:
        ParallaxError: if a key is missing, or other users can write to the keys' folder.
    """
    pair = keyring.ensure_pair(node) if is_loopback else keyring.find_pair(node)
    if pair is None:
        raise ParallaxError(f"node {node!r} has no key, which it needs off loopback", "make one: `parallax keys new`")
    server = keyring.find_public(peer)
    if server is None:
        hint = f"`parallax keys allow PUBLIC_KEY {name_machine(peer)}`"
        raise ParallaxError(f"no key of node {peer!r} is known", hint)
    return Guard(pair, server)


class ZapHandler:
    """Tells ZeroMQ, for each connection, whether the key of the peer is allowed (ZAP, ZeroMQ's RFC 27)."""

    def __init__(self, allows: Callable[[bytes], bool]) -> None:
        """Allow the keys for which ``allows`` returns true."""
        self._allows = allows
        self._refused: deque[bytes] = deque(maxlen=MOST_REFUSED)
        self._log_at = 0.0

    def answer(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return the answer to a question of ZeroMQ."""
        version, sequence, _, address, _, mechanism, *credentials = parts
        key = credentials[0] if mechanism == b"CURVE" and len(credentials) == 1 else b""
        is_allowed = self._allows(key)
        if not is_allowed:
            self._note(key, address)
        verdict = (b"200", b"OK", key.hex().encode()) if is_allowed else (b"400", b"unknown key", b"")
        return [version, sequence, *verdict, b""]

    def _note(self, key: bytes, address: bytes) -> None:
        """Log a refusal: once for a key, and one in a while, or strangers could fill the log."""
        now = time.monotonic()
        if key not in self._refused and now >= self._log_at:
            self._refused.append(key)
            self._log_at = now + LOG_S
            logger.warning("refused %s, whose key is not allowed: %s", address.decode(errors="replace"), key.hex())
