"""Starts the process of a peer, reads what it says, and ends it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

from parallax_core.api import ChildProcess, bare_environment, is_offline

COMMAND = (sys.executable, "-P", "-m", "parallax_transport_lattica.peer")
END_S = 1.5
"""Seconds for which a process may take to end before it is killed."""
GONE_S = 10.0
"""Seconds to wait for the end of a killed process."""


class PeerFailed(Exception):
    """The process of a peer ended, or could not do its work."""


class PeerProcess:
    """A process that is a peer; see `parallax_transport_lattica.peer`."""

    def __init__(self, process: ChildProcess, folder: TemporaryDirectory[str]) -> None:
        self._process = process
        self._folder = folder
        """Where lattica keeps its files; the process removes it as well, if it outlives the node."""
        self.has_udp = True
        """Whether it can send UDP, as lattica does at its start."""
        self.num_lines = 0
        """The number of lines that it has written: it writes one each second while it works."""
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Mapping[str, Any]) -> tuple[PeerProcess, dict[str, Any]]:
        """Start a process, and return it with what it says when it is ready.

        Raises:
            PeerFailed: if it ends instead.
        """
        folder = TemporaryDirectory(prefix="parallax-lattica-", ignore_cleanup_errors=True)
        try:
            process = await ChildProcess.start(COMMAND, bare_environment(), reads=True)
        except BaseException:
            folder.cleanup()
            raise
        peer = cls(process, folder)
        try:
            process.stdin.write(
                f"{json.dumps({**settings, 'folder': folder.name, 'offline': is_offline()})}\n".encode()
            )
            ready = await peer._wait_until_ready()
        except BaseException:
            await peer.kill()
            raise
        peer._reading = asyncio.create_task(peer._read())
        return peer, ready

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._reading is None or self._reading.done()

    async def end(self) -> None:
        """Make it end its streams, and kill it if that takes too long."""
        await self._process.end(END_S, GONE_S)
        await self._clean()

    async def kill(self) -> None:
        """End it at once; nothing of it is left when this returns."""
        await self._process.kill(GONE_S)
        await self._clean()

    async def _clean(self) -> None:
        try:
            if self._reading:
                await self._reading
        finally:
            self._folder.cleanup()

    async def _wait_until_ready(self) -> dict[str, Any]:
        while news := await self._read_line():
            if "ready" in news:
                return news
            if "error" in news:
                raise PeerFailed(str(news["error"]))
            self.has_udp = bool(news.get("udp", True))
        raise PeerFailed("its process ended before it was ready")

    async def _read(self) -> None:
        while await self._read_line():
            self.num_lines += 1

    async def _read_line(self) -> dict[str, Any] | None:
        """Return the next thing it says; None if it has ended."""
        try:
            news = json.loads(await self._process.stdout.readline())
        except ValueError:
            return None
        return news if isinstance(news, dict) else None
