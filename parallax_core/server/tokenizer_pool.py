"""A pool of processes that read request bodies, with limits on waiting bodies and on time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from parallax_core.base.errors import Overloaded
from parallax_core.contracts.grammar import Grammar
from parallax_core.engine.limits import Limits
from parallax_core.server.body_messages import BodyRequest, BodyResult, ReaderSetup
from parallax_core.server.chat_grammar import check_answer
from parallax_core.server.grammar_queue import GrammarQueue
from parallax_core.server.options import ServerOptions
from parallax_core.server.tokenizer_process import TokenizerProcess

MIB = 2**20
LARGE = MIB // 16
"""Bytes above which a body is large: large ones leave one of several processes free for small ones."""


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """The limits of a pool."""

    num_processes: int = 2
    max_waiting: int = 4096
    """Bodies that may wait for a process; more are refused. Engines queue fewer requests by default."""
    max_waiting_bytes: int = 64 * MIB
    """The total size of waiting bodies."""
    start_seconds: float = 60.0
    """Seconds a process may take to start."""
    seconds: float = 10.0
    """Seconds that reading a body may take, before its process is killed."""
    seconds_per_mib: float = 5.0
    """Further seconds for each MiB of a body: about five times what a tokenizer needs for a MiB of text."""

    @classmethod
    def of(cls, options: ServerOptions, limits: Limits) -> PoolLimits:
        """Return the limits for a server: at least four of its largest bodies, and all requests it admits, may wait."""
        num_requests = (limits.max_running or 0) + (limits.max_waiting or 0)
        return cls(
            num_processes=options.tokenizer_processes,
            max_waiting=max(cls.max_waiting, num_requests),
            max_waiting_bytes=max(cls.max_waiting_bytes, 4 * options.max_body_bytes),
        )

    def limit_s(self, size: int) -> float:
        """Return the seconds that reading a body of ``size`` bytes may take."""
        return self.seconds + self.seconds_per_mib * size / MIB


class TokenizerPool:
    """Reads bodies in child processes; see `BodyReading`. Belongs to one event loop."""

    def __init__(self, setup: ReaderSetup, limits: PoolLimits | None = None) -> None:
        """Read bodies for the model of ``setup``, within ``limits``, which has the time to start."""
        self._limits = limits or PoolLimits()
        setup = msgspec.structs.replace(setup, limit_s=self._limits.start_seconds)
        self._processes = [TokenizerProcess(setup) for _ in range(self._limits.num_processes)]
        self._grammars = GrammarQueue(TokenizerProcess(msgspec.structs.replace(setup, checks_grammars=True)))
        self._free: asyncio.Queue[TokenizerProcess] = asyncio.Queue()
        self._large = asyncio.Semaphore(max(1, self._limits.num_processes - 1))
        self._starting: list[asyncio.Task[None]] = []
        self._reading: set[asyncio.Task[BodyResult]] = set()
        self._num_waiting = self._waiting_bytes = 0

    async def start(self) -> None:
        """Start the first process; others would take processor time from the engine, which starts meanwhile.

        Raises:
            ParallaxError: if it cannot be started.
        """
        first = self._processes[0]
        starting = asyncio.create_task(first.start())
        self._starting.append(starting)
        await starting
        self._free.put_nowait(first)

    def start_others(self) -> None:
        """Start the other processes one after another, without waiting for them; see `BodyReading`."""
        self._starting.append(asyncio.create_task(self._start_others()))

    async def stop(self) -> None:
        """Kill all processes; bodies that are not read yet are refused."""
        await asyncio.gather(self._grammars.close(), *(process.close() for process in self._processes))
        # A process that one of these tasks starts or kills is not gone before the task ends.
        await asyncio.gather(*self._starting, *self._reading, return_exceptions=True)

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that read bodies."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def takes_grammars(self) -> bool:
        """Whether bodies may ask for a grammar; see `BodyReading`."""
        return self._grammars.takes_grammars

    async def read(self, ask: BodyRequest) -> BodyResult:
        """Read a body, and check its grammar if it has one. A caller that is cancelled gives up its place.

        Raises:
            Overloaded: if too many bodies wait already.
            ParallaxError: if reading takes too long, or a process is lost.
        """
        with self._waiting(ask.size):
            process = await self._take(ask)
        # It is not cancelled with the caller: the process is free only when it ends.
        reading = asyncio.create_task(self._read(process, ask))
        self._reading.add(reading)
        reading.add_done_callback(self._forget)

        async def check(grammar: Grammar) -> None:
            with self._waiting(ask.size):
                await self._grammars.check(grammar, ask.client)

        return await check_answer(await asyncio.shield(reading), check, is_able=self.takes_grammars)

    async def _start_others(self) -> None:
        for process in self._processes[1:]:
            await process.revive()
            self._free.put_nowait(process)
        await self._grammars.start()

    @contextmanager
    def _waiting(self, size: int) -> Iterator[None]:
        """Count a body as waiting."""
        limits = self._limits
        if self._num_waiting >= limits.max_waiting or (
            self._num_waiting and self._waiting_bytes + size > limits.max_waiting_bytes
        ):
            message = f"{self._num_waiting} requests are waiting to be read already"
            raise Overloaded(message, "try again later")
        self._num_waiting += 1
        self._waiting_bytes += size
        try:
            yield
        finally:
            self._num_waiting -= 1
            self._waiting_bytes -= size

    async def _take(self, ask: BodyRequest) -> TokenizerProcess:
        """Wait for a free process."""
        if ask.size <= LARGE:
            return await self._free.get()
        await self._large.acquire()
        try:
            return await self._free.get()
        except BaseException:
            self._large.release()
            raise

    async def _read(self, process: TokenizerProcess, ask: BodyRequest) -> BodyResult:
        try:
            return await process.read(ask, self._limits.limit_s(ask.size))
        finally:
            await process.revive()
            self._free.put_nowait(process)
            if ask.size > LARGE:
                self._large.release()

    def _forget(self, reading: asyncio.Task[BodyResult]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()  # its caller may be gone
