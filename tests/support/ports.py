"""Finds free ports of this machine."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def find_ports() -> int:
    """Return a free port whose next one is free, too, over TCP."""
    while True:
        with socket.create_server((HOST, 0)) as first:
            port: int = first.getsockname()[1]
            try:
                socket.create_server((HOST, port + 1)).close()
            except (OSError, OverflowError):
                continue
            return port
