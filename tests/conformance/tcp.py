"""A transport over TCP on loopback, small and real: the subject that shows the kit for transports to work.

A connection begins with the names of both ends. Then come messages: a byte for the kind, and for a frame the sizes of
its header and buffers, and these. A receiver acknowledges each frame that is taken, which gives its sender room.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from urllib.parse import urlsplit

from parallax_core.api import Frame, ParallaxError, PeerLost, TransportPlan

FRAME, TAKEN, BEAT, BYE = b"F", b"T", b"B", b"E"
SIZES = struct.Struct("!IH")
MAGIC = b"tests-tcp\n"
CHUNK = 2**16


class TcpLink:
    """One connection. Its reader runs until the peer is gone; receivers and senders wait for what it notes."""

    def __init__(self, plan: TransportPlan, peer: str, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        self.peer = peer
        self._plan, self._reader, self._out = plan, reader, out
        self._frames: deque[Frame] = deque()
        self._room = plan.credit
        self._changed = asyncio.Condition()
        self._lost = ""
        self._seen = self._now()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def send(self, frame: Frame) -> None:
        self._plan.limits.check(frame)
        async with self._changed:
            await self._changed.wait_for(lambda: self._room > 0 or self._lost)
            if self._lost:
                raise PeerLost(f"{self.peer} is gone: {self._lost}")
            self._room -= 1
            self.write_frame(frame)
        with contextlib.suppress(ConnectionError):  # the reader says so, too
            await self._out.drain()

    async def receive(self) -> Frame:
        async with self._changed:
            await self._changed.wait_for(lambda: self._frames or self._lost)
        return self.take_frame()

    def take_frame(self) -> Frame:
        if not self._frames:
            raise PeerLost(f"{self.peer} is gone: {self._lost}")
        self._out.write(TAKEN)
        return self._frames.popleft()

    def write_frame(self, frame: Frame) -> None:
        sizes = [memoryview(buffer).nbytes for buffer in frame.buffers]
        head = FRAME + SIZES.pack(len(frame.header), len(sizes)) + struct.pack(f"!{len(sizes)}Q", *sizes)
        self._out.writelines([head, frame.header, *frame.buffers])

    def note_frame(self, frame: Frame) -> None:
        self._frames.append(frame)

    async def close(self) -> None:
        await self._note("this end is closed", forget=True)
        if not self._out.is_closing():
            self._out.write(BYE)
            # The peer answers by hanging up, once it has read everything.
            await asyncio.wait(self._tasks[:1], timeout=self._plan.timeout_s)
        self.hang_up()

    def hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._out.close()

    async def _note(self, lost: str, *, forget: bool = False) -> None:
        async with self._changed:
            self._lost = self._lost or lost
            if forget:
                self._frames.clear()
            self._changed.notify_all()

    async def _read(self) -> None:
        lost = "it hung up"
        try:
            while (kind := await self._take(1)) != BYE:
                if kind == FRAME:
                    self.note_frame(await self._read_frame())
                elif kind == TAKEN:
                    self._room += 1
                async with self._changed:
                    self._changed.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except ValueError as error:
            lost = f"it sent {error}"
        await self._note(lost)
        self._out.close()

    async def _read_frame(self) -> Frame:
        header_size, count = SIZES.unpack(await self._take(SIZES.size))
        limits = self._plan.limits
        if header_size > limits.header_bytes or count > limits.buffers or len(self._frames) > self._plan.credit:
            raise ValueError("more than is allowed")
        sizes = struct.unpack(f"!{count}Q", await self._take(8 * count))
        if header_size + sum(sizes) > limits.frame_bytes:
            raise ValueError("more than is allowed")
        header = bytes(await self._take(header_size))
        return Frame(header, tuple([bytes(await self._take(size)) for size in sizes]))

    async def _take(self, size: int) -> bytearray:
        taken = bytearray()
        while len(taken) < size:
            part = await self._reader.readexactly(min(size - len(taken), CHUNK))
            self._seen = self._now()
            taken += part
        return taken

    async def _watch(self) -> None:
        while self._now() - self._seen < self._plan.timeout_s:
            with contextlib.suppress(ConnectionError):
                self._out.write(BEAT)
            await asyncio.sleep(self._plan.timeout_s / 5)
        await self._note("it says nothing")
        self._tasks[0].cancel()
        self._out.transport.abort()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class TcpTransport:
    """A node; its links are of the class `link`, so that a test can plant a fault."""

    link: type[TcpLink] = TcpLink

    def __init__(self, plan: TransportPlan) -> None:
        self._plan = plan
        self._server: asyncio.Server | None = None
        self._links: list[TcpLink] = []
        self._accepted: deque[TcpLink] = deque()
        self._changed = asyncio.Condition()
        self._stopped = False
        self.address = ""

    async def start(self) -> None:
        if not self._plan.listen:
            return
        host, port = parse_address(self._plan.listen)
        try:
            self._server = await asyncio.start_server(self._greet, host, port)
        except OSError as error:
            raise ParallaxError(f"cannot listen at {self._plan.listen}: {error}", "choose another port") from error
        self.address = f"tcp://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def connect(self, address: str, node: str) -> TcpLink:
        host, port = parse_address(address)
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                reader, out = await asyncio.open_connection(host, port)
                try:
                    out.write(MAGIC + f"{self._plan.node}\n".encode())
                    name = (await reader.readline()).decode().strip()
                    self.check_name(name, node, address)
                except BaseException:
                    out.close()
                    raise
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise PeerLost(f"nobody answers at {address}: {error}") from error
        out.write(b"\n")
        return self.add_link(name, reader, out)

    def check_name(self, name: str, wanted: str, address: str) -> None:
        if name != wanted:
            raise PeerLost(f"{name!r} is at {address}, not {wanted!r}")

    def add_link(self, peer: str, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> TcpLink:
        link = self.link(self._plan, peer, reader, out)
        self._links.append(link)
        return link

    async def accept(self) -> TcpLink:
        async with self._changed:
            await self._changed.wait_for(lambda: self._accepted or self._stopped)
            if self._stopped:
                raise PeerLost("this transport is stopped")
            return self._accepted.popleft()

    async def stop(self) -> None:
        self._stopped = True
        if self._server:
            self._server.close()
        async with self._changed:
            self._changed.notify_all()
        await asyncio.gather(*(link.close() for link in self._links))

    async def identify(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> str:
        """Exchange names with who connects; return nothing for who does not know how, or takes too long."""
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                if await reader.readexactly(len(MAGIC)) != MAGIC:
                    return ""
                name = (await reader.readline()).decode().strip()
                out.write(f"{self._plan.node}\n".encode())
                return name if await reader.readline() == b"\n" else ""
        except (OSError, ValueError, EOFError):
            return ""

    async def _greet(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        name = ""
        try:
            name = await self.identify(reader, out)
        finally:
            if not name:
                out.close()
        if name:
            async with self._changed:
                self._accepted.append(self.add_link(name, reader, out))
                self._changed.notify_all()


def parse_address(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        assert parts.scheme == "tcp"
        return parts.hostname or "", int(parts.port or 0)
    except (AssertionError, ValueError) as error:
        raise ParallaxError(f"{address!r} is no address", "write tcp://HOST:PORT") from error
