"""The processes that read the bodies of requests: how many there are, who waits for one, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from parallax_core.base.errors import Overloaded
from parallax_core.engine.limits import Limits
from parallax_core.models.generation_config import AUTO
from parallax_core.server.body_messages import BodyRequest, BodyResult, ReaderSetup
from parallax_core.server.options import ServerOptions
from parallax_core.server.tokenizer_process import TokenizerProcess

MIB = 2**20
LARGE = MIB // 16
"""Bodies over this size leave one process to the others, where there are several: so small ones are read at once."""


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """How much a pool takes on."""

    num_processes: int = 2
    max_waiting: int = 4096
    """Bodies that wait for a process; more are refused. No engine takes on so many unless a user says so."""
    max_waiting_bytes: int = 64 * MIB
    """And their sizes together."""
    start_seconds: float = 60.0
    """What a process may take to begin."""
    seconds: float = 10.0
    """What reading a body may take; the process is killed then."""
    seconds_per_mib: float = 5.0
    """And so much more for each MiB: some five times what a tokenizer takes for a MiB of text."""

    @classmethod
    def of(cls, options: ServerOptions, wanted: Limits) -> PoolLimits:
        """Return the limits of a server: a few of the largest bodies may wait, and as many as requests may later."""
        num_requests = (wanted.max_running or 0) + (wanted.max_waiting or 0)
        return cls(
            num_processes=options.tokenizer_processes,
            max_waiting=max(cls.max_waiting, num_requests),
            max_waiting_bytes=max(cls.max_waiting_bytes, 4 * options.max_body_bytes),
        )

    def limit_s(self, size: int) -> float:
        """Return what reading a body of so many bytes may take, in seconds."""
        return self.seconds + self.seconds_per_mib * size / MIB


class TokenizerPool:
    """Reads bodies in processes of its own; see `BodyReading`. Belongs to one event loop."""

    def __init__(self, folder: str, model_id: str, limits: PoolLimits | None = None, generation: str = AUTO) -> None:
        """Read bodies for the model in ``folder``; for ``generation``, see `read_generation`."""
        self._limits = limits or PoolLimits()
        setup = ReaderSetup(folder=folder, model_id=model_id, limit_s=self._limits.start_seconds, generation=generation)
        self._processes = [TokenizerProcess(setup) for _ in range(self._limits.num_processes)]
        self._free: asyncio.Queue[TokenizerProcess] = asyncio.Queue()
        self._large = asyncio.Semaphore(max(1, self._limits.num_processes - 1))
        self._reading: set[asyncio.Task[BodyResult]] = set()
        self._num_waiting = self._waiting_bytes = 0

    async def start(self) -> None:
        """Start all processes.

        Raises:
            ParallaxError: if one cannot be started; `stop` ends the others.
        """
        await asyncio.gather(*(self._start(process) for process in self._processes))

    async def stop(self) -> None:
        """End all processes, whatever they do; bodies that are not read yet are refused."""
        await asyncio.gather(*(process.close() for process in self._processes))

    async def read(self, ask: BodyRequest) -> BodyResult:
        """Read a body. Whoever is cancelled while he waits is forgotten.

        Raises:
            Overloaded: if too many wait already.
            ParallaxError: if reading takes too long, or a process is lost.
        """
        with self._waiting(len(ask.body)):
            process = await self._take(ask)
        reading = asyncio.create_task(self._read(process, ask))  # to its end: only then the process is free again
        self._reading.add(reading)
        reading.add_done_callback(self._forget)
        return await asyncio.shield(reading)

    async def _start(self, process: TokenizerProcess) -> None:
        await process.start()
        self._free.put_nowait(process)

    @contextmanager
    def _waiting(self, size: int) -> Iterator[None]:
        """Count a body among those that wait."""
        limits = self._limits
        if self._num_waiting >= limits.max_waiting or (
            self._num_waiting and self._waiting_bytes + size > limits.max_waiting_bytes
        ):
            message = f"{self._num_waiting} requests wait to be read already"
            raise Overloaded(message, "try again later")
        self._num_waiting += 1
        self._waiting_bytes += size
        try:
            yield
        finally:
            self._num_waiting -= 1
            self._waiting_bytes -= size

    async def _take(self, ask: BodyRequest) -> TokenizerProcess:
        """Wait for a process that is free."""
        if len(ask.body) <= LARGE:
            return await self._free.get()
        await self._large.acquire()
        try:
            return await self._free.get()
        except BaseException:
            self._large.release()
            raise

    async def _read(self, process: TokenizerProcess, ask: BodyRequest) -> BodyResult:
        try:
            return await process.read(ask, self._limits.limit_s(len(ask.body)))
        finally:
            await process.revive()
            self._free.put_nowait(process)
            if len(ask.body) > LARGE:
                self._large.release()

    def _forget(self, reading: asyncio.Task[BodyResult]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()  # nobody may be left to see it
