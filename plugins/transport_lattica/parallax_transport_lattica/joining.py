"""Join codes over lattica: ZeroMQ's, through a tunnel to the head, with the id of its peer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from parallax_core.api import Enrolment, ParallaxError, PeerLost
from parallax_transport_lattica.address import SCHEME, parse_address, read_multiaddr
from parallax_transport_lattica.call import find_ip, start_caller
from parallax_transport_lattica.process import PeerProcess
from parallax_transport_zmq.address import TcpEndpoint
from parallax_transport_zmq.joining import DAMAGED, ZmqJoining
from parallax_transport_zmq.keyfile import KEY_BYTES, NodeRole

REACH_S = 2.2
"""Seconds to reach the head's peer: with the 2.5 of ZeroMQ, less than five."""
MOST_ADDRESSES = 6


class LatticaJoining:
    """Makes and uses join codes; see `parallax_core.api.JoinMethod`."""

    def __init__(self) -> None:
        self._inner = ZmqJoining()

    def prepare(self, node: str) -> None:
        """Create the key ``default``, unless the node has a key."""
        self._inner.prepare(node)

    def describe_head(self, node: str, address: str) -> bytes:
        """Return the public key of ``node``, the id of its peer, and the addresses at which it listens."""
        place = parse_address(address)
        if not place.peer:
            raise ParallaxError(f"the id of the peer at {address} is not known", "give the address that it prints")
        described = self._inner.describe_head(node, str(TcpEndpoint(place.host, place.port)))
        return described[:KEY_BYTES] + f"{place.peer},".encode() + described[KEY_BYTES:]

    def list_addresses(self, head: bytes) -> tuple[str, ...]:
        """Return the addresses in the description of a head."""
        try:
            peer, *texts = head[KEY_BYTES:].decode("ascii").split(",")
            places = [parse_address(f"{SCHEME}://{text}/{peer}") for text in texts[:MOST_ADDRESSES]]
        except (UnicodeDecodeError, ParallaxError) as error:
            raise ParallaxError(DAMAGED, "copy the code again, with all its letters") from error
        if not places or not peer:
            raise ParallaxError(DAMAGED, "copy the code again, with all its letters")
        return tuple(map(str, places))

    def find_key(self, head: bytes) -> bytes:
        """Return the public key in the description of a head."""
        return self._inner.find_key(head)

    def derive_proof(self, secret: bytes) -> bytes:
        """Return the public half of the key that belongs to a secret."""
        return self._inner.derive_proof(secret)

    def list_machines(self) -> Mapping[str, bytes]:
        """Return the keys of the machines that may be workers here; see `parallax_core.api.MachineKeys`."""
        return self._inner.list_machines()

    def list_removed(self) -> Mapping[bytes, str]:
        """Return the keys that were removed, each with its name."""
        return self._inner.list_removed()

    def find_role(self, key: bytes) -> NodeRole | None:
        """Return the role of a key, of whichever machine; None for an unknown or removed key."""
        return self._inner.find_role(key)

    def take_over(
        self, machines: Mapping[str, bytes], removed: Mapping[bytes, str], servers: Mapping[str, bytes]
    ) -> None:
        """Trust the machines of another head as workers, ``servers`` also as heads, and none that was removed."""
        self._inner.take_over(machines, removed, servers)

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        """Ask the head to admit this machine's own key, through a tunnel to the first address that answers."""
        key, addresses = self.find_key(head), self.list_addresses(head)
        caller, port, reached = await _reach(addresses)
        local, address = f"127.0.0.1:{port}", choose_address(addresses, reached)
        try:
            joined = await self._inner.enrol(key + local.encode(), secret, machine, versions)
        except ParallaxError as error:
            here = f"tcp://{local}"
            raise type(error)(error.message.replace(here, address), error.hint.replace(here, address)) from error
        finally:
            await caller.kill()
        return Enrolment(machine=joined.machine, address=address)


async def _reach(addresses: tuple[str, ...]) -> tuple[PeerProcess, int, str]:
    """Start a peer that reaches the head; see `start_caller`.

    Raises:
        PeerLost: if it is not reached in time.
    """
    try:
        async with asyncio.timeout(REACH_S):
            return await start_caller([(place, await find_ip(place)) for place in map(parse_address, addresses)])
    except TimeoutError as error:
        message = f"the server at {' or '.join(addresses)} does not answer in {REACH_S:g} s"
        raise PeerLost(message, "is it still running, and does a firewall let this port through?") from error


def choose_address(addresses: tuple[str, ...], reached: str) -> str:
    """Return the address of a code that is ``reached``, which is in libp2p's notation; else the first."""
    place = read_multiaddr(reached)
    return str(place) if place is not None and str(place) in addresses else addresses[0]
