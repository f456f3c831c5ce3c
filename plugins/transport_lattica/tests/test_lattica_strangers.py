"""Strangers that reach the listening peer of a node, with lattica itself and whatever they like to send."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from parallax_core.api import Frame
from parallax_transport_lattica import peer as peer_module
from parallax_transport_lattica.address import parse_address
from parallax_transport_lattica.packet import Kind, Packet
from parallax_transport_lattica.peer import METHOD
from tests.support.lattica_nodes import LOOPBACK, join, plan_node, started

STRANGER = Path(__file__).with_name("stranger.py")


class Stranger:
    """Pushes to a node, and reads its answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def push(self, content: bytes, size: int = 0, method: str = METHOD) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{method} {size or len(content)} {content.hex()}\n".encode())
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()


@asynccontextmanager
async def stranger_to(address: str) -> AsyncIterator[Stranger]:
    place = parse_address(address)
    multiaddr = f"/ip4/{place.host}/tcp/{place.port}/p2p/{place.peer}"
    process = await asyncio.create_subprocess_exec(sys.executable, STRANGER, multiaddr, stdin=PIPE, stdout=PIPE)
    try:
        yield Stranger(process)
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


async def test_whatever_strangers_push_is_refused_and_links_go_on(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    guess = os.urandom(16)
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        here, there = await join(near, far)
        async with stranger_to(far.address) as stranger:
            assert await stranger.push(bomb) == "E"
            assert await stranger.push(b"") == "E"
            assert await stranger.push(b"GET / HTTP/1.1") == "E"
            assert await stranger.push(Packet(Kind.DATA).pack(), size=2**23) == "E"
            assert await stranger.push(Packet(Kind.DATA, guess, 1, bomb).pack()) == "S"
            assert await stranger.push(Packet(Kind.OPEN, guess, 0, b"../../etc").pack()) == "E"
            for method in ("ParallaxTunnel.other", "ParallaxTunnel.", "Other.push", "push"):
                assert (await stranger.push(bomb, method=method)).startswith("error:")
            assert await stranger.push(Packet(Kind.PING).pack()) == "K"
        await here.send(Frame(b"still"))
        assert (await there.receive()).header == b"still"
    assert not (tmp_path / "exploded").exists()


async def test_stranger_that_opens_a_stream_gets_no_link() -> None:
    stream = os.urandom(16)
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        async with stranger_to(far.address) as stranger:
            assert await stranger.push(Packet(Kind.OPEN, stream, 0, b"12D3KooWnobody").pack()) == "K"
            for number, content in enumerate((b"\xff" * 64, b"near", pickle.dumps(1)), 1):
                await stranger.push(Packet(Kind.DATA, stream, number, content).pack())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(far.accept(), 0.5)
        assert far.listener
        assert far.listener.process
        here, there = await join(near, far)
        await here.send(Frame(b"x"))
        assert (await there.receive()).header == b"x"


def test_process_of_a_peer_neither_unpickles_nor_loads_what_does() -> None:
    code = (
        "import pickle\n"
        "def fail(*_, **__): raise SystemError('unpickled')\n"
        "pickle.loads = pickle.load = pickle.Unpickler = fail\n"
        "import sys, json, tempfile\n"
        "from parallax_transport_lattica.peer import Network, Place\n"
        "Network(Place(tempfile.mkdtemp()), bytes)\n"
        "print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('lattica', 'nest_asyncio')]))\n"
        "sys.stdout.flush(); import os; os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_imports_the_part_of_lattica_that_unpickles() -> None:
    paths = [*Path(peer_module.__file__).parent.glob("*.py"), *Path(__file__).parent.glob("*.py")]
    assert len(paths) > 20
    for path in paths:
        assert not re.search(r"^\s*(import|from) lattica\b", path.read_text(encoding="utf-8"), re.MULTILINE)
