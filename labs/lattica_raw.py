"""A process that uses lattica by itself, without a tunnel; see `labs.lattica_hangs`.

    python -m labs.lattica_raw serve FOLDER PORT ONCE_MORE
    python -m labs.lattica_raw METHOD FOLDER ADDRESS IN_FLIGHT BYTES

A server counts the requests that it has served. Unless ONCE_MORE is empty, it is a method of lattica's that the server
calls again and again as soon as it has served one. Other processes call the server by METHOD, which is ``call``,
``call_stream`` or ``call_stream_iter``, and count the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from labs.movement import Progress, claim_output, say
from parallax_transport_lattica.confine import limit_memory, refuse_udp

CHUNK = bytes(2**20)
HANDLER_S = 0.005
"""Seconds that a handler of streams works."""
AGAIN_S = 0.01
"""Seconds between two calls that a server makes."""


class Raw:
    """The service: lattica finds it by the name of its class."""

    _rpc_methods = ("take",)
    _stream_methods = ("take",)
    _stream_iter_methods = ("chunks",)

    def __init__(self, progress: Progress, work_s: float = 0.0) -> None:
        self._progress = progress
        self._work_s = work_s

    def _handle_take(self, _data: bytes) -> bytes:
        self._progress.add()
        return b"K"

    def _handle_stream_take(self, _data: bytes) -> bytes:
        time.sleep(self._work_s)
        self._progress.add()
        return b"K"

    def _handle_stream_iter_chunks(self, _data: bytes) -> Iterator[bytes]:
        while True:
            yield CHUNK


def make_network(folder: str, port: int, bootstraps: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 -- not typed
    """Return a peer that listens on loopback."""
    from lattica_python_core import LatticaSDK

    return LatticaSDK(
        {
            "listen_addrs": [f"/ip4/127.0.0.1/tcp/{port}"],
            "bootstrap_nodes": list(bootstraps),
            "with_mdns": False,
            "with_upnp": False,
            "protocol": "/raw",
            "key_path": f"{folder}/key",
            "storage_path": f"{folder}/blocks",
            "dht_db_path": f"{folder}/dht",
        }
    )


def serve(folder: str, port: int, once_more: str, output: TextIO) -> None:
    """Serve until killed; call the method ``once_more`` again and again."""
    progress = Progress()
    network = make_network(folder, port)
    service = Raw(progress, HANDLER_S if once_more else 0.0)
    network.register_service(service)
    say(output, address=f"/ip4/127.0.0.1/tcp/{port}/p2p/{network.peer_id()}")
    progress.print_often(output)
    calls: dict[str, Callable[[], object]] = {
        "get_visible_maddrs": network.get_visible_maddrs,
        "register_service": lambda: network.register_service(service),
        "connect": lambda: [network.connect(peer) for peer in network.get_all_peers()],
    }
    while True:
        time.sleep(AGAIN_S)
        if once_more and progress.count:
            with contextlib.suppress(ValueError):  # it says that the peer is connected already
                calls[once_more]()


async def call(network: Any, address: str, how: tuple[str, int, int], output: TextIO) -> None:  # noqa: ANN401
    """Call the server at ``address``: by which method, how many at a time, with how many bytes."""
    method, in_flight, num_bytes = how
    progress, peer = Progress(), address.rpartition("/")[2]
    while peer not in network.get_all_peers():  # noqa: ASYNC110 -- lattica reports no events
        await asyncio.sleep(0.01)
    client, payload = network.get_client(peer), bytes(num_bytes)
    say(output, ready=True)
    progress.print_often(output)

    async def repeat() -> None:
        while True:
            if method == "call_stream_iter":
                async for _ in client.call_stream_iter("Raw.chunks", payload):
                    progress.add()
            else:
                await getattr(client, method)("Raw.take", payload)
                progress.add()

    await asyncio.gather(*(repeat() for _ in range(in_flight)))


def main() -> None:
    """Run the process, which has to be killed."""
    os.environ.update(RUST_LOG="off", RUST_BACKTRACE="0")
    output = claim_output()
    limit_memory()
    refuse_udp()  # it would ask public servers
    try:
        match sys.argv[1:]:
            case ["serve", folder, port, once_more]:
                serve(folder, int(port), once_more, output)
            case [method, folder, address, in_flight, num_bytes]:
                network = make_network(folder, 0, (address,))
                asyncio.run(call(network, address, (method, int(in_flight), int(num_bytes)), output))
    except Exception as error:  # noqa: BLE001 -- the benchmark tells a person
        say(output, error=f"{type(error).__name__}: {error}")
    finally:
        os._exit(1)  # an ordinary end may hang


if __name__ == "__main__":
    main()
