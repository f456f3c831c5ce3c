"""The transport: links of ZeroMQ, with its encryption and keys, through the tunnels of lattica.

Lattica carries bytes and is trusted with nothing else. A listening node has a peer in a process, which carries each
stream that others open to the node's own ZeroMQ port on loopback. A link that a node makes has a process as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parallax_core.api import Admission, ParallaxError, PeerLost, TransportPlan, keys_folder
from parallax_transport_lattica.address import parse_address, split_port
from parallax_transport_lattica.call import find_ip, start_caller
from parallax_transport_lattica.listener import Listener, find_listening_ip
from parallax_transport_lattica.process import PeerProcess
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.security import guard_connecting, guard_listening
from parallax_transport_zmq.transport import FILES_S, ZmqTransport

LOOPBACK = "tcp://127.0.0.1"
LOOK_S = 0.5
"""Seconds between two looks whether a link has ended."""


class LatticaTransport:
    """The links of a node over lattica; see `parallax_core.api.Transport`."""

    def __init__(self, plan: TransportPlan) -> None:
        self._plan = plan
        self._keyring = Keyring(keys_folder(), plan.heads, FILES_S)
        self._inner = ZmqTransport(replace(plan, listen=f"{LOOPBACK}:0" if plan.listen else ""))
        self._listener: Listener | None = None
        self._callers: set[PeerProcess] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._address = ""

    @property
    def address(self) -> str:
        """The address at which others reach this node, once started; empty if it does not listen."""
        return self._address

    @property
    def listener(self) -> Listener | None:
        """The peer that listens; None if this node does not."""
        return self._listener

    def enrol_by(self, admission: Admission) -> None:
        """Admit machines by a code, as ``admission`` decides; see `Enrolling`."""
        self._inner.enrol_by(admission)

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        """Trust these nodes as workers; see `Introducing`."""
        self._keyring.introduce(keys)
        self._inner.introduce(keys)

    async def start(self) -> None:
        """Begin to listen, if asked to.

        Raises:
            ParallaxError: if it cannot listen there, or has no key to listen off loopback.
        """
        try:
            place = parse_address(self._plan.listen) if self._plan.listen else None
            if place is not None:
                ip = await find_listening_ip(place)
                guard_listening(self._keyring, self._plan.node, is_loopback=ip.is_loopback, where=str(place))
            await self._inner.start()
            if place is not None:
                self._listener = Listener(place, self._plan.node)
                self._address = await self._listener.start(split_port(self._inner.address))
        except BaseException:
            await self.stop()
            raise

    async def connect(self, address: str, node: str) -> ZmqLink:
        """Make a link to the node called ``node`` at ``address``.

        Raises:
            PeerLost: if the node does not answer in time, has another name or key, or does not trust this node.
            ParallaxError: if ``address`` is not one of this transport, or a key is missing.
        """
        place = parse_address(address)
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                ip = await find_ip(place)
                guard_connecting(self._keyring, self._plan.node, node, is_loopback=ip.is_loopback)
                process, port, _ = await start_caller([(place, ip)])
                return await self._make_link(process, f"{LOOPBACK}:{port}", address, node)
        except TimeoutError as error:
            message = f"node {node!r} at {address} does not answer in {self._plan.timeout_s:g} s"
            raise PeerLost(message, "look at the last lines of its log; is a firewall in between?") from error

    async def open_port(self) -> int:
        """Accept links at a port of loopback, too; see `Relayable`.

        Raises:
            ParallaxError: if this node does not listen.
        """
        return await self._inner.open_port()

    async def connect_port(self, port: int, node: str) -> ZmqLink:
        """Connect to a node by a port of loopback that leads to it; see `Relayable`.

        Raises:
            PeerLost: if it does not answer in time, or has another name or key.
        """
        return await self._inner.connect_port(port, node)

    async def accept(self) -> ZmqLink:
        """Wait for the next link that another node makes.

        Raises:
            PeerLost: if this transport is stopped.
        """
        return await self._inner.accept()

    async def stop(self) -> None:
        """Close every link, and stop listening. Idempotent; legal at any time."""
        await self._inner.stop()
        for task in self._ending:
            task.cancel()
        ending = [process.end() for process in self._callers]
        if self._listener:
            ending.append(self._listener.stop())
        await asyncio.gather(*ending)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _make_link(self, process: PeerProcess, local: str, address: str, node: str) -> ZmqLink:
        """Make a link through the local port of a process, which ends with the link."""
        self._callers.add(process)
        try:
            link = await self._inner.connect(local, node)
        except BaseException as error:
            await process.kill()
            self._callers.discard(process)
            if isinstance(error, ParallaxError):
                raise type(error)(error.message.replace(local, address), error.hint.replace(local, address)) from error
            raise
        task = asyncio.create_task(self._end_with(link, process))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return link

    async def _end_with(self, link: ZmqLink, process: PeerProcess) -> None:
        while not (link.is_over or process.is_over):  # noqa: ASYNC110 -- a link that ends tells nobody
            await asyncio.sleep(LOOK_S)
        await self._end(process)

    async def _end(self, process: PeerProcess) -> None:
        await process.end()
        self._callers.discard(process)
