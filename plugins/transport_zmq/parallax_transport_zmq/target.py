"""Turns addresses into sockets that listen or connect, and sets their options."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from ipaddress import IPv4Address

import zmq

from parallax_core.api import ParallaxError, PeerLost, TransportPlan
from parallax_transport_zmq.address import IpAddress, IpcEndpoint, TcpEndpoint, find_host, parse_address
from parallax_transport_zmq.keyfile import NodeRole
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.parcel import measure_message
from parallax_transport_zmq.security import Guard, guard_connecting

Context = zmq.Context[zmq.Socket[bytes]]

WAITING_MESSAGES = 64
"""Messages of a peer that ZeroMQ buffers; beyond that TCP slows the peer down."""
FAREWELL_S = 1.0
"""Seconds for which sent messages are still delivered after a socket is closed."""
PING_S = 0.25
"""Longest interval between two pings of ZeroMQ's own threads, in seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect."""

    address: str
    """The address as given."""
    endpoint: str
    """The address for ZeroMQ, with an IP address as its host."""
    guard: Guard | None = None
    """None for a socket in the file system."""
    role: NodeRole = "any"
    """The role of the node there."""


async def find_target(address: str, peer: str, node: str, keyring: Keyring) -> Target:
    """Return the address and guard with which ``node`` reaches ``peer``.

    Raises:
        PeerLost: if the host is unknown.
        ParallaxError: if the address is not one to connect to, or a key is missing.
    """
    place = parse_address(address)
    if isinstance(place, IpcEndpoint):
        return Target(address, str(place))
    ip = await find_ip(place, address)
    guard = guard_connecting(keyring, node, peer, is_loopback=ip.is_loopback)
    role = keyring.find_role(guard.server, peer) or "any"
    return Target(address, str(TcpEndpoint(str(ip), place.port)), guard, role)


async def find_ip(place: TcpEndpoint, address: str) -> IpAddress:
    """Return the IP address to connect to for ``place``, parsed from ``address``.

    Raises:
        PeerLost: if the host is unknown.
        ParallaxError: if the address is not one to connect to.
    """
    try:
        ip = await find_host(place.host)
    except OSError as error:
        raise PeerLost(f"there is no host {place.host!r}: {error}", "check the address") from error
    if ip.is_unspecified or not place.port:
        message = f"{address!r} is not an address to connect to"
        raise ParallaxError(message, "write the address that the other node prints, with its port")
    return ip


def open_socket(context: Context, kind: int, plan: TransportPlan, guard: Guard | None) -> zmq.Socket[bytes]:
    """Return a socket that forgets disconnected peers and never reconnects.

    One that listens limits incoming messages. One that connects does not: ZeroMQ pings from it, and if the peer goes
    while messages wait that the limit holds back, the next ping would end this process (libzmq 4.3.5).
    """
    socket = context.socket(kind)
    timeout_ms = max(1, round(1000 * plan.timeout_s))
    keep_alive_s = max(1, round(plan.timeout_s))
    options = {
        zmq.LINGER: 0,
        zmq.IPV6: 1,
        zmq.SNDHWM: 0,  # the credit of each link bounds the queue
        zmq.RCVHWM: WAITING_MESSAGES,
        zmq.MAXMSGSIZE: measure_message(plan.limits),
        zmq.RECONNECT_IVL: -1,
        zmq.CONNECT_TIMEOUT: timeout_ms,
        zmq.HANDSHAKE_IVL: timeout_ms,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: keep_alive_s,
        zmq.TCP_KEEPALIVE_INTVL: keep_alive_s,
        zmq.TCP_KEEPALIVE_CNT: 3,
    }
    if kind == zmq.DEALER:  # the other end answers, so that data arrives at both; see `Arrivals`
        options[zmq.HEARTBEAT_IVL] = max(1, round(1000 * min(PING_S, plan.timeout_s / 10)))
        options[zmq.HEARTBEAT_TIMEOUT] = 0  # the links judge
        options[zmq.RCVHWM] = 0
    for option, value in options.items():
        socket.setsockopt(option, value)
    if guard:
        guard.apply(socket)
    return socket


async def stop_context(context: Context) -> None:
    """End the threads of ZeroMQ, once the last messages are sent or `FAREWELL_S` is over."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        context.term()
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(over.set)

    thread = threading.Thread(target=end, daemon=True)  # the end of the process would wait for a thread of a pool
    thread.start()
    await over.wait()
    thread.join()


def bind_tcp(socket: zmq.Socket[bytes], place: TcpEndpoint, ip: object) -> int:
    """Listen on ``place``, whose host has the address ``ip``; return the port.

    Raises:
        ParallaxError: if that fails.
    """
    host = "127.0.0.1" if ip == IPv4Address("127.0.0.1") else str(ip)
    try:
        socket.bind(str(TcpEndpoint(host, place.port)))
    except zmq.ZMQError as error:
        hint = "choose another port, or 0 for a free one, and an address of this machine"
        raise ParallaxError(f"cannot listen at {place}: {zmq.strerror(error.errno or 0)}", hint) from error
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
