"""Binds the socket of a server."""

from __future__ import annotations

import contextlib
import socket

from parallax_core.base.errors import ParallaxError


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to ``host`` and ``port``, before any long work, so that a clash shows at once.

    It does not listen yet: connections are refused until the server runs.

    Raises:
        ParallaxError: if the port is taken or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            stack.pop_all()
    except OSError as error:
        raise explain_bind_error(f"{host}:{port}", error) from error
    return sock


def explain_bind_error(place: str, error: OSError) -> ParallaxError:
    """Return the error of a server that cannot listen at ``place``."""
    message = f"cannot listen on {place}: {error.strerror or error}"
    return ParallaxError(message, "choose another --port or --host, or end the program that uses it")
