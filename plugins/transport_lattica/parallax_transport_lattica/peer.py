"""A peer of the network, in a process of its own: ``python -m parallax_transport_lattica.peer``.

Lattica has ways to lock up a process, and to end it. So a node talks to it through this process only, which can be
killed. It uses lattica as follows; other ways lock up, lose data without an error, or unpickle what strangers send:

- `lattica_python_core` is imported, and never the package `lattica`.
- There is one service with one method, registered at once; it takes a packet, and returns one byte. It never waits and
  never raises.
- All else is a packet in the other direction: nothing is streamed, and nothing is returned.
- The addresses of other peers are given at the start: a later ``connect`` would wait with the interpreter locked.

The first line of standard input has the settings; the process ends with its standard input. It writes lines of JSON:
one when it is ready, and then one each second for as long as it works.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from parallax_transport_lattica.confine import limit_memory, refuse_udp
from parallax_transport_lattica.packet import MOST_CONTENT, Kind, Packet, Reply
from parallax_transport_lattica.tunnel import Local, Tunnel

METHOD = "ParallaxTunnel.push"
PROTOCOL = "/parallax-tunnel/1"
"""Peers of other protocols are disconnected. It keeps networks apart, and is no secret."""
ALIVE_S = 1.0
"""Seconds between two lines that say that the process works."""
GOODBYE_S = 1.0
"""Seconds for which streams may end when the process is to end."""
POLL_S = 0.005
"""Seconds between two looks whether another peer is connected."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer listens, and keeps its files."""

    folder: str
    listen: str = "/ip4/127.0.0.1/tcp/0"
    key: str = ""
    """The folder of its key; empty: a new key."""


class ParallaxTunnel:
    """The service: lattica finds it by the name of its class, and calls it on threads of its own."""

    _rpc_methods = ("push",)
    _stream_methods = ()
    _stream_iter_methods = ()

    def __init__(self, receive: Callable[[bytes], bytes]) -> None:
        self._receive = receive

    def _handle_push(self, packet: bytes) -> bytes:
        try:
            return bytes(self._receive(packet))
        except Exception:  # noqa: BLE001 -- lattica would call again, three times in all
            return bytes(Reply.BAD)


class Network:
    """One peer of lattica's."""

    def __init__(self, place: Place, receive: Callable[[bytes], bytes], bootstraps: Sequence[str] = ()) -> None:
        from lattica_python_core import LatticaSDK

        self._sdk = LatticaSDK(
            {
                "listen_addrs": [place.listen],  # without one, it listens on all interfaces
                "bootstrap_nodes": list(bootstraps),
                "with_mdns": False,
                "with_upnp": False,
                "protocol": PROTOCOL,
                "key_path": place.key or f"{place.folder}/key",
                "storage_path": f"{place.folder}/blocks",
                "dht_db_path": f"{place.folder}/dht",
            }
        )
        self._sdk.register_service(ParallaxTunnel(receive))
        self.peer = str(self._sdk.peer_id())
        self._clients = functools.lru_cache(maxsize=256)(self._sdk.get_client)

    async def push(self, peer: str, packet: bytes) -> bytes:
        """Send a packet, and return the answer.

        Raises:
            RuntimeError: if the peer is not reached.
        """
        try:
            return bytes(await self._clients(peer).call(METHOD, packet))
        except ValueError as error:  # no id of a peer
            raise RuntimeError(str(error)) from error

    async def wait_for(self, peer: str) -> str:
        """Wait until ``peer`` is connected, and return its address."""
        while peer not in self._sdk.get_all_peers():  # noqa: ASYNC110 -- lattica reports no events
            await asyncio.sleep(POLL_S)
        return next(iter(self._sdk.get_peer_addresses(peer)), "")

    def close(self) -> None:
        """Leave the network. The object must be kept until the process ends: its deletion may hang."""
        with contextlib.suppress(RuntimeError):
            self._sdk.close()


class ListeningPeer:
    """A peer that others open streams to; each is carried to a port of this machine."""

    def __init__(self, settings: dict[str, Any], say: Callable[..., None]) -> None:
        self._port = int(settings["port"])
        self._say = say
        self._tunnel = Tunnel(self._push, self._connect)
        folder = settings["folder"]
        place = Place(f"{folder}/peer", settings["listen"], settings["key"])
        self._network = Network(place, self._tunnel.receive)
        own = f"{settings['canary']}/p2p/{self._network.peer}"
        self._canary = Network(Place(f"{folder}/canary"), lambda _: Reply.BAD, [own])

    async def run(self) -> None:
        """Serve until cancelled; a peer of our own shows that others can reach this one."""
        await self._canary.wait_for(self._network.peer)
        await self._check()
        self._say(ready=True, peer=self._network.peer)
        while True:
            await asyncio.sleep(ALIVE_S)
            await self._check()
            self._say(alive=True)

    async def close(self) -> None:
        """Wait a moment for streams to end, and leave the network."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._tunnel.drain()
        self._network.close()
        self._canary.close()

    async def _check(self) -> None:
        if await self._canary.push(self._network.peer, Packet(Kind.PING).pack()) != Reply.TAKEN:
            raise RuntimeError("the peer does not answer itself")

    async def _push(self, peer: str, packet: bytes) -> bytes:
        return await self._network.push(peer, packet)

    async def _connect(self) -> Local:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=MOST_CONTENT)


class CallingPeer:
    """A peer that opens streams to one other: one for each connection to a port of this machine."""

    def __init__(self, settings: dict[str, Any], say: Callable[..., None]) -> None:
        self._peer = str(settings["peer"])
        self._say = say
        self._tunnel = Tunnel(self._push)
        self._network = Network(Place(settings["folder"]), self._tunnel.receive, settings["bootstraps"])
        self._open: set[asyncio.Task[None]] = set()
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        """Serve until the last connection has ended."""
        address = await self._network.wait_for(self._peer)
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=MOST_CONTENT)
        self._say(ready=True, port=server.sockets[0].getsockname()[1], address=address)
        await self._is_over.wait()

    async def close(self) -> None:
        """Wait a moment for streams to end, and leave the network."""
        if self._open:
            await asyncio.wait(self._open, timeout=GOODBYE_S)
        self._network.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._tunnel.open(self._peer, self._network.peer, (reader, writer))
        finally:
            self._open.discard(task)
            if not self._open:
                self._is_over.set()

    async def _push(self, peer: str, packet: bytes) -> bytes:
        return await self._network.push(peer, packet)


async def serve(settings: dict[str, Any], say: Callable[..., None]) -> None:
    """Run the peer until it is over, or standard input ends."""
    role = (ListeningPeer if settings["role"] == "listen" else CallingPeer)(settings, say)
    running, ending = asyncio.create_task(role.run()), asyncio.create_task(_wait_for_end())
    done, _ = await asyncio.wait([running, ending], return_when=asyncio.FIRST_COMPLETED)
    if running in done and (error := running.exception()) is not None:
        say(error=str(error))
    await role.close()
    shutil.rmtree(settings["folder"], ignore_errors=True)


async def _wait_for_end() -> None:
    """Wait until the node closes our standard input, which its end does too."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await reader.read()


def _claim_output() -> TextIO:
    """Return standard output, which from now on is the standard error of everything else: lattica logs there."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


def main() -> None:
    """Run the process."""
    os.environ.update(RUST_LOG="off", RUST_BACKTRACE="0")
    output = _claim_output()

    def say(**news: object) -> None:
        with contextlib.suppress(OSError):  # the node has ended
            output.write(f"{json.dumps(news)}\n")
            output.flush()

    try:
        with open(0, "rb", buffering=0, closefd=False) as stdin:  # what follows is for `_wait_for_end`
            settings = json.loads(stdin.readline())
        limit_memory()
        is_refused = refuse_udp()
        say(udp=not is_refused)
        if settings["offline"] and not is_refused:
            say(error="offline, it may not ask public servers, and this system cannot keep it from that; use zmq")
        else:
            asyncio.run(serve(settings, say))
    except Exception as error:  # noqa: BLE001 -- the node tells a person
        say(error=f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)  # an ordinary end of the interpreter waits for threads of lattica's, or aborts


if __name__ == "__main__":
    main()
