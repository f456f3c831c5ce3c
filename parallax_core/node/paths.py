"""Makes the links of a node to others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.transport import Link, Transport

RETRY_S = 0.1
"""Seconds between two attempts."""


@dataclass(frozen=True, slots=True)
class Path:
    """A link to a node."""

    link: Link
    relay: str = ""
    """The relay over which it goes; empty: it is direct."""


class Paths:
    """Connects a node to others directly. A service may know other ways. Belongs to one event loop."""

    def __init__(self, transport: Transport) -> None:
        """Connect by ``transport``."""
        self._transport = transport

    @property
    def transport(self) -> Transport:
        """The transport by which it connects."""
        return self._transport

    async def connect(self, address: str, node: str) -> Link:
        """Return a link to a node; see `reach`."""
        return (await self.reach(address, node)).link

    async def reach(self, address: str, node: str) -> Path:
        """Return a link to the node called ``node``, at ``address`` or by another way.

        Raises:
            PeerLost: if the node is not reached.
            ParallaxError: if the address is invalid, and there is no other way.
        """
        return Path(await self._transport.connect(address, node))

    async def reach_soon(self, address: str, node: str, within_s: float) -> Path:
        """Return a link as `reach` does, with several attempts: a head introduces this node to the other one meanwhile.

        Raises:
            PeerLost: if the attempts fail, the last one after ``within_s`` at least.
            ParallaxError: if the address is invalid, and there is no other way.
        """
        until = asyncio.get_running_loop().time() + within_s
        while True:
            try:
                return await self.reach(address, node)
            except PeerLost:
                if asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(RETRY_S)
