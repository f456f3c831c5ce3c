"""One connection of two nodes.

Messages follow each other: a byte for the kind, and for a frame the sizes of its header and buffers, and these. A
receiver acknowledges each frame that is taken, which gives its sender room.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque

from parallax_core.api import Frame, PeerLost, TransportPlan

FRAME, TAKEN, BEAT, BYE = b"F", b"T", b"B", b"E"
"""The kinds of messages: a frame, its acknowledgement, a heartbeat, the end."""
SIZES = struct.Struct("!IH")
"""The size of a header in bytes, and the number of buffers that follow it."""
CHUNK = 2**16
"""The largest read, in bytes: each is a sign of life, so that a large frame over a slow line is no silence."""


class TcpLink:
    """See `parallax_core.api.Link`. Its reader runs until the peer is gone; senders and receivers wait for its news."""

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
        """Send a frame as soon as the receiver has room for it."""
        self._plan.limits.check(frame)
        async with self._changed:
            await self._changed.wait_for(lambda: self._room > 0 or self._lost)
            if self._lost:
                raise PeerLost(f"{self.peer} is gone: {self._lost}")
            self._room -= 1
            self.write_frame(frame)
        with contextlib.suppress(ConnectionError):  # the reader notices it, too
            await self._out.drain()

    async def receive(self) -> Frame:
        """Return the next frame; what came before the peer was lost is still returned."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._frames or self._lost)
        return self.take_frame()

    def take_frame(self) -> Frame:
        """Take a waiting frame, without an await, so that a cancelled receive loses none, and acknowledge it."""
        if not self._frames:
            raise PeerLost(f"{self.peer} is gone: {self._lost}")
        self._out.write(TAKEN)
        return self._frames.popleft()

    def write_frame(self, frame: Frame) -> None:
        """Write a whole frame, without an await, so that no other frame gets between its parts."""
        sizes = [memoryview(buffer).nbytes for buffer in frame.buffers]
        head = FRAME + SIZES.pack(len(frame.header), len(sizes)) + struct.pack(f"!{len(sizes)}Q", *sizes)
        self._out.writelines([head, frame.header, *frame.buffers])

    def note_frame(self, frame: Frame) -> None:
        """Queue a received frame."""
        self._frames.append(frame)

    async def close(self) -> None:
        """Say goodbye, and wait for the peer to hang up: then it has read everything."""
        await self._note("this end is closed", forget=True)
        if not self._out.is_closing():
            self._out.write(BYE)
            await asyncio.wait(self._tasks[:1], timeout=self._plan.timeout_s)
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection at this end."""
        for task in self._tasks:
            task.cancel()
        self._out.close()

    async def _note(self, lost: str, *, forget: bool = False) -> None:
        """Note why there will be no more frames, and wake all waiting tasks."""
        async with self._changed:
            self._lost = self._lost or lost
            if forget:
                self._frames.clear()
            self._changed.notify_all()

    async def _read(self) -> None:
        """Read until the peer hangs up or sends invalid data."""
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
        """Read a frame, checking its sizes against the limits first."""
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
        """Send heartbeats, and abort the connection of a peer that sends nothing."""
        while self._now() - self._seen < self._plan.timeout_s:
            with contextlib.suppress(ConnectionError):
                self._out.write(BEAT)
            await asyncio.sleep(self._plan.timeout_s / 5)
        await self._note("it is silent")
        self._tasks[0].cancel()
        self._out.transport.abort()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
