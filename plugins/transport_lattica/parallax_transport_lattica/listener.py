"""Keeps a listening peer alive: restarts a hung process with the same key and port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from parallax_core.api import ParallaxError
from parallax_transport_lattica.address import SCHEME, LatticaEndpoint, find_canary_ip, write_multiaddr
from parallax_transport_lattica.call import tell_of_stun
from parallax_transport_lattica.keyfolder import claim_key
from parallax_transport_lattica.process import PeerFailed, PeerProcess
from parallax_transport_zmq.address import IpAddress, advertise_host, find_host

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at the process."""
SILENCE_S = 5.0
"""Seconds of silence after which a process is killed: it writes a line each second while it works."""
START_S = 15.0
"""Seconds that the start of a process may take."""
PAUSES_S = (0.0, 1.0, 2.0, 5.0)
"""Seconds before further attempts to start a process; the last value repeats."""


class Listener:
    """A listening peer, whose process is replaced when it ends or hangs."""

    def __init__(self, place: LatticaEndpoint, node: str) -> None:
        self._place = place
        self._node = node
        self._stack = ExitStack()
        self._settings: Mapping[str, Any] = {}
        self._process: PeerProcess | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def process(self) -> PeerProcess | None:
        """The process that listens now; None while it is replaced."""
        return self._process

    async def start(self, port: int) -> str:
        """Begin to carry streams to ``port`` of this machine; return the address at which others reach the peer.

        Raises:
            ParallaxError: if it cannot listen there.
        """
        ip = await find_listening_ip(self._place)
        own_port = find_free_port(self._place, ip)
        self._settings = {
            "role": "listen",
            "listen": write_multiaddr(ip, own_port),
            "canary": write_multiaddr(find_canary_ip(ip), own_port),
            "key": self._stack.enter_context(claim_key(self._node)),
            "port": port,
        }
        try:
            peer = await self._start_process()
        except PeerFailed as error:
            hint = "try again; is lattica installed, `pip install lattica`?"
            raise ParallaxError(f"lattica cannot listen at {self._place}: {error}", hint) from error
        self._watching = asyncio.create_task(self._watch())
        if self._place.public:
            return f"{SCHEME}://{self._place.public}/{peer}"
        return str(LatticaEndpoint(advertise_host(self._place.host), own_port, peer))

    async def stop(self) -> None:
        """End the process. Idempotent; legal at any time."""
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._process:
            await self._process.end()
        self._process = self._watching = None
        self._stack.close()

    async def _start_process(self) -> str:
        try:
            async with asyncio.timeout(START_S):
                self._process, ready = await PeerProcess.start(self._settings)
        except TimeoutError as error:
            raise PeerFailed(f"it does not reach itself in {START_S:g} s") from error
        tell_of_stun(self._process)
        return str(ready["peer"])

    async def _watch(self) -> None:
        while True:
            assert self._process is not None
            reason = await _wait_for_fault(self._process)
            logger.warning("restarting lattica: %s", reason)
            process, self._process = self._process, None
            await process.kill()
            await self._restart()

    async def _restart(self) -> None:
        attempt = 0
        while self._process is None:
            await asyncio.sleep(PAUSES_S[min(attempt, len(PAUSES_S) - 1)])
            attempt += 1
            try:
                await self._start_process()
            except (PeerFailed, OSError) as error:
                logger.warning("lattica does not start: %s", error)


async def _wait_for_fault(process: PeerProcess) -> str:
    """Wait until a process ends or is silent for too long, and return which."""
    loop = asyncio.get_running_loop()
    silence_s, seen, before = 0.0, process.num_lines, loop.time()
    while not process.is_over:
        await asyncio.sleep(LOOK_S)
        now = loop.time()
        silence_s += min(now - before, 2 * LOOK_S)  # beyond that, this loop was busy and read nothing
        before = now
        if process.num_lines != seen:
            silence_s, seen = 0.0, process.num_lines
        if silence_s >= SILENCE_S:
            return f"its process was silent for {SILENCE_S:g} s"
    return "its process ended"


async def find_listening_ip(place: LatticaEndpoint) -> IpAddress:
    """Return the IP address of the interface to listen at.

    Raises:
        ParallaxError: if the host is unknown.
    """
    try:
        return await find_host(place.host)
    except OSError as error:
        raise ParallaxError(f"there is no host {place.host!r}: {error}", "name one of this machine") from error


def find_free_port(place: LatticaEndpoint, ip: IpAddress) -> int:
    """Return the port to listen at, which is free now: lattica itself would share it with another process.

    Raises:
        ParallaxError: if it is taken, or the address is not one of this machine.
    """
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6  # noqa: PLR2004 -- versions of IP
    try:
        with contextlib.closing(socket.socket(family)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((str(ip), place.port))
            probe.listen(1)  # with the option alone, a port at which another listens could be bound
            return int(probe.getsockname()[1])
    except OSError as error:
        hint = "choose another port, or 0 for a free one, and an address of this machine"
        raise ParallaxError(f"cannot listen at {place}: {error.strerror}", hint) from error
