"""Reaches another node: a peer of our own in a process, with a local port that leads to the node's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import cache

from parallax_core.api import ParallaxError, PeerLost
from parallax_transport_lattica.address import LatticaEndpoint, write_multiaddr
from parallax_transport_lattica.process import PeerFailed, PeerProcess
from parallax_transport_zmq.address import IpAddress, find_host

logger = logging.getLogger(__name__)

Target = tuple[LatticaEndpoint, IpAddress]
"""An address and the IP address of its host."""

STUN = (
    "lattica asks public servers (stun.l.google.com and stun.cloudflare.com) for the address of this machine whenever "
    "a link is made, and has no switch for that"
)


def tell_of_stun(process: PeerProcess) -> None:
    """Say once that a process may ask public servers; on Linux it cannot."""
    if process.has_udp:
        warn_of_stun()


@cache
def warn_of_stun() -> None:
    """Log the note about public servers, once in a process."""
    logger.warning(STUN)


async def find_ip(place: LatticaEndpoint) -> IpAddress:
    """Return the IP address of the host to connect to.

    Raises:
        PeerLost: if the host is unknown.
        ParallaxError: if the address is not one to connect to.
    """
    try:
        ip = await find_host(place.host)
    except OSError as error:
        raise PeerLost(f"there is no host {place.host!r}: {error}", "check the address") from error
    if ip.is_unspecified or not place.port or not place.peer or place.public:
        message = f"'{place}' is not an address to connect to"
        raise ParallaxError(message, "write the address that the other node prints, with its port and the id after it")
    return ip


async def start_caller(places: Sequence[Target]) -> tuple[PeerProcess, int, str]:
    """Start a peer that reaches one other at any of these addresses.

    Returns:
        The process, the port of this machine that leads there, and the address that answered, as libp2p writes it.

    Raises:
        PeerLost: if nothing listens at any of the addresses, or the process fails.
    """
    if not await _knock_at_all(places):
        where = " or ".join(str(place) for place, _ in places)
        raise PeerLost(f"no node answers at {where}", "is the node there started, and the address right?")
    bootstraps = [write_multiaddr(ip, place.port, place.peer) for place, ip in places]
    settings = {"role": "call", "peer": places[0][0].peer, "bootstraps": bootstraps}
    try:
        process, ready = await PeerProcess.start(settings)
    except PeerFailed as error:
        raise PeerLost(f"lattica failed: {error}", "try again; is lattica installed, `pip install lattica`?") from error
    tell_of_stun(process)
    return process, int(ready["port"]), str(ready["address"])


async def _knock_at_all(places: Sequence[Target]) -> bool:
    """Return whether anything listens at one of these addresses, as soon as one has answered."""
    tasks = [asyncio.create_task(_knock(ip, place.port)) for place, ip in places]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _knock(ip: IpAddress, port: int) -> bool:
    """Return whether anything listens there: cheaper to find out than by a process."""
    try:
        _, writer = await asyncio.open_connection(str(ip), port)
    except OSError:
        return False
    writer.close()
    return True
