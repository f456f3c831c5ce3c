"""A peer of lattica's that waits for a direct connection to another; see `labs.lattica_punching`.

    python -m labs.lattica_puncher FOLDER LISTEN RELAY

It is confined as the transport's processes are, and has their service. In addition, lattica knows a relay: it reserves
a place there, tells the other peers of the relay about it, and connects to those that it hears of, first over the relay
and then by hole punching. The process says its peer, and the other one as soon as that has answered a call, which
lattica refuses to make over a relayed connection.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from labs.movement import claim_output, say
from parallax_transport_lattica.confine import limit_memory, refuse_udp
from parallax_transport_lattica.packet import Kind, Packet, Reply
from parallax_transport_lattica.peer import METHOD, ParallaxTunnel

AGAIN_S = 0.05
"""Seconds between two looks whether there is a direct connection."""


def make_network(folder: str, listen: str, relay: str) -> Any:  # noqa: ANN401 -- not typed
    """Return a peer with a relay; its key is in the folder, and is made if there is none."""
    from lattica_python_core import LatticaSDK

    return LatticaSDK(
        {
            "listen_addrs": [listen],
            "bootstrap_nodes": [],
            "relay_servers": [relay],
            "with_dcutr": True,
            "with_mdns": False,
            "with_upnp": False,
            "protocol": "/punching",
            "key_path": f"{folder}/key",
            "storage_path": f"{folder}/blocks",
            "dht_db_path": f"{folder}/dht",
        }
    )


def find_direct(network: Any, relay: str) -> str:  # noqa: ANN401 -- not typed
    """Return a peer other than the relay to which there is a direct connection; empty: there is none."""
    for peer in network.get_all_peers():
        if peer not in relay and any("p2p-circuit" not in each for each in network.get_peer_addresses(peer)):
            return str(peer)
    return ""


async def wait_for_answer(network: Any, relay: str) -> str:  # noqa: ANN401 -- not typed
    """Wait until another peer has answered a call, and return it.

    Raises:
        RuntimeError: if it cannot be called over what seems to be a direct connection.
    """
    while not (peer := find_direct(network, relay)):  # noqa: ASYNC110 -- lattica reports no events
        await asyncio.sleep(AGAIN_S)
    if bytes(await network.get_client(peer).call(METHOD, Packet(Kind.PING).pack())) != Reply.TAKEN:
        raise RuntimeError("another answer than expected")
    return peer


async def run(folder: str, listen: str, relay: str) -> None:
    """Look for a direct connection, and keep it until killed."""
    output = claim_output()
    limit_memory()
    refuse_udp()  # it would ask public servers
    network = make_network(folder, listen, relay)
    network.register_service(ParallaxTunnel(lambda _: Reply.TAKEN))
    say(output, peer=str(network.peer_id()))
    say(output, direct=await wait_for_answer(network, relay))
    await asyncio.Event().wait()


if __name__ == "__main__":
    os.environ.update(RUST_LOG="off", RUST_BACKTRACE="0")
    try:
        asyncio.run(run(*sys.argv[1:]))
    finally:
        os._exit(1)  # an ordinary end may hang
