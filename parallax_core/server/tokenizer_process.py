"""The server's side of a process that reads request bodies.

The process runs untrusted code that comes with the model: a chat template, and the regular expressions of a tokenizer.
A thread could not be ended in the middle of that, and one that holds the interpreter lock would block all others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

import msgspec

from parallax_core.base.environment import bare_environment
from parallax_core.base.errors import SHUTTING_DOWN, BackendFailed, InvalidRequest, ParallaxError, Unavailable
from parallax_core.base.processes import ChildProcess
from parallax_core.server.body_messages import (
    LENGTH_BYTES,
    BodyRequest,
    BodyResult,
    ReaderReady,
    ReaderSetup,
    ReadJob,
    to_frame,
)

T = TypeVar("T")

GRACE_S = 5.0
"""Seconds after its time limit at which a process ends by itself, in case its parent is gone and cannot kill it."""
END_S = 5.0
"""Seconds to wait for the end of a killed process, which takes milliseconds unless the machine is overloaded."""
ENVIRONMENT = {"RAYON_NUM_THREADS": "1", "RUST_BACKTRACE": "0", "HF_HUB_OFFLINE": "1"}
"""Settings of the tokenizers library: one thread per process, no backtraces of panics, and nothing to fetch."""
LOST = (EOFError, OSError)
"""The errors of reading from or writing to a process that is gone."""

logger = logging.getLogger(__name__)


class TokenizerProcess:
    """One process that reads one body at a time; if a body takes too long, it is killed and started again."""

    def __init__(self, setup: ReaderSetup) -> None:
        self._setup = setup
        self._process: ChildProcess | None = None
        self._is_closed = False
        self.takes_grammars = True
        """See `ReaderReady.takes_grammars`."""

    @property
    def pid(self) -> int | None:
        """The number of the process; None if none runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process, and wait until it is ready.

        Raises:
            ParallaxError: if it fails to start; no process is left running then.
        """
        command = (sys.executable, "-P", "-m", "parallax_core.server.tokenizer_main")  # -P: no imports from this folder
        environment = bare_environment() | ENVIRONMENT
        try:
            self._process = await ChildProcess.start(command, environment, reads=True)
            if self._is_closed:  # meanwhile: nobody else will kill it
                await self.kill()
                raise Unavailable(SHUTTING_DOWN)
            async with asyncio.timeout(self._setup.limit_s):
                ready = await self._exchange(self._process, (to_frame(self._setup),), ReaderReady)
        except (TimeoutError, *LOST) as error:
            message = f"the chat template and tokenizer of the model cannot be prepared: {await self._end(error)}"
            raise BackendFailed(message, "fetch the model again, or report it to its authors") from error
        except asyncio.CancelledError:
            await self.kill()
            raise
        if ready.refusal is not None:
            await self.kill()
            raise ready.refusal.as_error()
        self.takes_grammars = ready.takes_grammars

    async def read(self, ask: BodyRequest, limit_s: float) -> BodyResult:
        """Read a body.

        Raises:
            InvalidRequest: if reading takes longer than ``limit_s`` seconds.
            Unavailable: if the process is closed before or meanwhile.
            ParallaxError: if the process is lost, or cannot be started.
        """
        if self._is_closed:
            raise Unavailable(SHUTTING_DOWN)
        if self._process is None:
            await self.start()
        assert self._process is not None
        try:
            async with asyncio.timeout(limit_s):
                result = await self._exchange(self._process, write_job(ask, limit_s + GRACE_S), BodyResult)
        except TimeoutError as error:
            await self.kill()
            message = f"the model's chat template and tokenizer take more than {limit_s:.3g} seconds for this request"
            raise InvalidRequest(message, hint="shorten it; if it is short, the model is at fault") from error
        except LOST as error:
            raise self._explain(await self._end(error)) from error
        return result

    async def close(self) -> None:
        """Kill the process and do not start it again."""
        self._is_closed = True
        await self.kill()

    async def kill(self) -> str:
        """Kill the process, if there is one, and return how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "there is no process"
        await process.kill(END_S)
        return process.explain() or "its process does not end"

    async def revive(self) -> None:
        """Start the process again if it was killed; if that fails, the next `read` tries again and raises."""
        if self._process is None and not self._is_closed:
            try:
                await self.start()
            except Exception:  # nobody waits for this start; the next `read` raises the error if there still is one
                if not self._is_closed:
                    logger.exception("tokenizer process cannot be started again")

    def _explain(self, end: str) -> ParallaxError:
        """Return the error for the client whose request was being read when the process ended."""
        return Unavailable(SHUTTING_DOWN) if self._is_closed else BackendFailed(f"the request could not be read: {end}")

    async def _end(self, error: BaseException) -> str:
        """Kill the process, and return why."""
        if isinstance(error, TimeoutError):
            await self.kill()
            return f"this takes longer than {self._setup.limit_s:g} seconds"
        if self._process is None:
            return str(error)
        with suppress(TimeoutError):  # the process has ended by itself, or is about to
            async with asyncio.timeout(END_S):
                await self._process.wait()
        return await self.kill()

    @staticmethod
    async def _exchange(process: ChildProcess, pieces: Iterable[bytes], answer: type[T]) -> T:
        """Send a frame, and return the next one."""
        for piece in pieces:
            process.stdin.write(piece)
            await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "little")
        return msgspec.msgpack.decode(await process.stdout.readexactly(size), type=answer)


def write_job(ask: BodyRequest, limit_s: float) -> tuple[bytes, bytes]:
    """Return the pieces to write to a process that is to read a body."""
    job = ReadJob(ask=msgspec.structs.replace(ask, body=b""), size=len(ask.body), limit_s=limit_s)
    return to_frame(job), ask.body
