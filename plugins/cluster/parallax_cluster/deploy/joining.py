"""Joins a head: by a code, by its address, or by finding a known one on the local network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from parallax_cluster.deploy.discovery import find_discovery, find_head, find_heads
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.joined import JoinedHead, find_joined, list_joined
from parallax_cluster.membership.join_code import JoinCode, is_code, read_code
from parallax_core.api import HEAD, Discovery, Enrolment, JoinMethod, ParallaxError, PeerLost, UsageError, name_machine
from parallax_core.api.deployment import PluginHost, name_node
from parallax_core.api.node import write_own_versions

logger = logging.getLogger(__name__)

SEEK_S = 2.0
"""Seconds to look for the head of a code that has no address."""
ENROL_S = 4.0
"""Seconds to find a head and to be admitted: with the start of the command, less than five."""
AGAIN_S = 1.0
"""Seconds to look for the heads that this machine has joined."""
ALONE_S = 0.3
"""Seconds to look for others once one has answered."""


def check_where(where: str) -> None:
    """Check a code or address to join by, before anything leaves this machine; empty: find a head.

    Raises:
        UsageError: if it is neither, or the code is damaged.
        ParallaxError: if no head was joined at the address before.
    """
    if is_code(word := where.strip()):
        read_code(word)
    elif word:
        find_joined(word)


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins heads by the installed transports."""

    plugins: PluginHost
    looks_around: bool = True
    """Whether it looks for heads on the local network."""

    def join(self, where: str) -> JoinedHead:
        """Return the head that ``where`` stands for: a code, an address, or nothing, for one that was joined before.

        With a code, the head admits this machine first.

        Raises:
            UsageError: if it is neither a code nor an address, or several heads are found.
            ParallaxError: if the head cannot be found or reached, refuses, or was not joined by a code before.
        """
        word = where.strip()
        if not word:
            return self._find_again()
        if not is_code(word):
            return find_joined(word)
        joined = asyncio.run(self.enrol(read_code(word)))
        try:
            joined.save()
        except OSError as error:  # it serves all the same
            logger.warning("`parallax join` without a code may not find this server again: %s", error)
        return joined

    def find_key(self, joined: JoinedHead) -> dict[str, bytes]:
        """Return the key of a head by its name."""
        return {HEAD: get_method(self.plugins, joined.transport).find_key(joined.head)}

    def recognise(self, where: str) -> bytes:
        """Return the key of the head that a code or an address stands for, of which none is asked; empty: unknown.

        Raises:
            UsageError: if it is neither a code nor an address.
            ParallaxError: if no head was joined at the address before, or the transport is not installed.
        """
        word = where.strip()
        known = read_code(word) if is_code(word) else find_joined(word)
        return get_method(self.plugins, known.transport).find_key(known.head) if known.head else b""

    async def list_addresses(self, joined: JoinedHead, timeout_s: float) -> Sequence[str]:
        """Return the addresses at which a head that was joined is found now; none if it is not found."""
        method, discovery = get_method(self.plugins, joined.transport), self._find_discovery(joined.transport)
        if discovery is None:
            return ()
        head = await find_head(discovery, method.find_key(joined.head), timeout_s)
        return method.list_addresses(head) if head is not None else ()

    def _find_discovery(self, transport: str) -> Discovery | None:
        return find_discovery(self.plugins.transports().get(transport)) if self.looks_around else None

    async def enrol(self, code: JoinCode) -> JoinedHead:
        """Ask the head of a code to admit this machine; records nothing.

        Raises:
            ParallaxError: if the head cannot be found or reached, or refuses.
        """
        use = CodeUse(get_method(self.plugins, code.transport), code, self._find_discovery(code.transport))
        enrolment, head = await (use.ask() if code.head else use.find_and_ask())
        return JoinedHead(
            transport=code.transport,
            address=enrolment.address,
            head=head,
            machine=enrolment.machine,
            others=tuple(use.method.list_addresses(head)),
        )

    def _find_again(self) -> JoinedHead:
        """Return the head that this machine has joined before and finds now, else the one that it has joined last."""
        known = list_joined()
        if not known:
            hint = "the first time a code is needed: `parallax cluster codes new` on the server's machine makes one"
            raise ParallaxError("this machine has not joined a server before", hint)
        found = asyncio.run(self._look_for(known))
        if len(found) > 1:
            places = ", ".join(each.address for each in found)
            raise UsageError(f"{len(found)} servers that this machine has joined are here", f"name one: {places}")
        return found[0] if found else known[0]

    async def _look_for(self, known: Sequence[JoinedHead]) -> list[JoinedHead]:
        """Return those of ``known`` that are found, at the addresses where they are now."""
        looking, found = [self._locate(each) for each in known], list[JoinedHead]()
        try:
            async with asyncio.timeout(AGAIN_S) as limit:
                for located in asyncio.as_completed(looking):
                    if (joined := await located) is not None:
                        found.append(joined)
                        limit.reschedule(asyncio.get_running_loop().time() + ALONE_S)
        except TimeoutError:
            pass
        return found

    async def _locate(self, joined: JoinedHead) -> JoinedHead | None:
        try:
            addresses = await self.list_addresses(joined, AGAIN_S)
        except ParallaxError:  # its transport is not installed any more, or there is no network
            return None
        if not addresses:
            return None
        return joined if joined.address in addresses else msgspec.structs.replace(joined, address=addresses[0])


@dataclass(frozen=True, slots=True)
class CodeUse:
    """Asks a head to admit this machine by a code."""

    method: JoinMethod
    code: JoinCode
    discovery: Discovery | None

    async def ask(self) -> tuple[Enrolment, bytes]:
        """Ask at the addresses in the code, and where the head is found meanwhile; return the answer of the first.

        Raises:
            ParallaxError: if none admits it: the reason of those in the code.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + AGAIN_S
        asking = asyncio.create_task(self._enrol(self.code.head))
        looking = asyncio.create_task(self._ask_elsewhere())
        try:
            await asyncio.wait([asking, looking], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and looking.exception() is not None:
                await asyncio.wait([asking])
            elif not looking.done() and asking.exception() is not None:
                await asyncio.wait([looking], timeout=max(0.0, until - loop.time()))
            winner = next((task for task in (asking, looking) if task.done() and not task.exception()), asking)
            return await winner
        finally:
            await _end(asking, looking)

    async def find_and_ask(self) -> tuple[Enrolment, bytes]:
        """Find the head of a code without addresses, and ask it.

        Raises:
            ParallaxError: if it is not found, does not answer, or refuses.
        """
        if self.discovery is None:
            raise UsageError(
                "this code has no address", "leave out --no-discovery, or use the whole code of the server"
            )
        found: bytes | None = None
        try:
            async with asyncio.timeout(ENROL_S):
                found = await find_head(self.discovery, self._proof, SEEK_S)
                if found is None:
                    raise _say_not_found()
                return await self._enrol(found)
        except TimeoutError as error:
            places = ", ".join(self.method.list_addresses(found or b""))
            message = f"the server of the join code is found, and does not answer at {places}"
            raise PeerLost(message, "does a firewall let this port through?") from error

    async def _ask_elsewhere(self) -> tuple[Enrolment, bytes]:
        """Ask the head where it is found, at addresses that are not in the code."""
        if self.discovery is None:
            raise _say_not_found()
        known, key = set(self.method.list_addresses(self.code.head)), self.method.find_key(self.code.head)
        async with aclosing(find_heads(self.discovery, self._proof)) as heads:
            async for head in heads:
                if self.method.find_key(head) == key and set(self.method.list_addresses(head)) - known:
                    return await self._enrol(head)
        raise _say_not_found()

    async def _enrol(self, head: bytes) -> tuple[Enrolment, bytes]:
        wanted = name_machine(name_node(0))
        return await self.method.enrol(head, self.code.secret, wanted, write_own_versions()), head

    @property
    def _proof(self) -> bytes:
        return self.method.derive_proof(self.code.secret)


def _say_not_found() -> PeerLost:
    hint = "is it running, without --no-discovery? Networks that drop broadcasts, and others, need its whole code"
    return PeerLost("no server of this join code is found on the networks of this machine", hint)


async def _end(*tasks: asyncio.Task[tuple[Enrolment, bytes]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
