"""Accepts links for a rendezvous that is nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from parallax_cluster.node.membership.rendezvous import MOST_LINKS, MOST_LINKS_OF_ONE, RendezvousServer
from parallax_cluster.wire.relay import OfferRelay
from parallax_core.api import Link, ParallaxError, PeerLost, Transport, name_machine
from parallax_core.api.node import STRANGERS, Channel, Epoch, welcome
from parallax_core.wire.membership import Refusal

logger = logging.getLogger(__name__)

GREETING_S = 10.0
"""Seconds that a client has to greet."""


class RendezvousHost:
    """Serves a rendezvous over a transport that has started. Belongs to one event loop."""

    def __init__(self, transport: Transport, node: str) -> None:
        """Accept links as the node called ``node``."""
        self._transport = transport
        self._node = node
        self._rendezvous = RendezvousServer()
        self._links: dict[asyncio.Task[None], str] = {}
        """The links, each with the machine of its client."""

    async def run(self) -> None:
        """Accept links until cancelled, or the transport is stopped."""
        try:
            with contextlib.suppress(PeerLost):
                while True:
                    self._accept(await self._transport.accept())
        finally:
            for task in self._links:
                task.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    def _accept(self, link: Link) -> None:
        machine, machines = name_machine(link.peer), list(self._links.values())
        is_one_too_many = len(machines) >= MOST_LINKS or machines.count(machine) >= MOST_LINKS_OF_ONE
        channel = Channel(link, STRANGERS)
        task = asyncio.create_task(channel.leave() if is_one_too_many else self._serve(channel))
        self._links[task] = machine
        task.add_done_callback(self._links.pop)

    async def _serve(self, channel: Channel) -> None:
        try:
            channel.check_role("worker")
            async with asyncio.timeout(GREETING_S):
                hello = await welcome(channel, self._node)
            if hello.purpose == "rendezvous":
                await self._rendezvous.serve(channel)
            elif hello.purpose in {"", "offer"}:
                channel.learn([OfferRelay])
                async with asyncio.timeout(GREETING_S):
                    await channel.receive()  # its `Join`, or its `OfferRelay`
                hint = "`parallax worker MODEL --layers A-B --announce CODE` announces layers here"
                await channel.send(Refusal(Epoch(0), 0, "this is a rendezvous, which has no work", hint))
        except (ParallaxError, TimeoutError) as error:
            reason = error.message if isinstance(error, ParallaxError) else "it did not greet in time"
            logger.debug("link ends node=%s: %s", channel.peer, reason)
        finally:
            await channel.leave()
