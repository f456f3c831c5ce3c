"""Implements the engine contract with SGLang in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from parallax_adapters.engines import EngineAdapters
from parallax_backend_sglang.fields import HONOURED, MAX_ANSWERS, MAX_LOGPROBS, check_fields, list_sampling
from parallax_backend_sglang.frames import (
    PHASES,
    Chunk,
    Chunks,
    Failed,
    Frame,
    Generate,
    Load,
    Loaded,
    LoadEngine,
    Phase,
    Stop,
    pack,
    read,
)
from parallax_backend_sglang.process import ChildProcess, StartChild
from parallax_backend_sglang.stream import AnswerStream
from parallax_core.api import (
    BackendFailed,
    EngineInfo,
    EngineStats,
    Health,
    InvalidRequest,
    PoolUse,
    Progress,
    Request,
    RequestField,
    Unavailable,
)

logger = logging.getLogger(__name__)

STOPPED = "the engine is stopped"
RESTART_HINT = "the lines of the log that begin with `sglang:` say why"


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine loads."""

    message: LoadEngine
    adapters: EngineAdapters | None
    """Finds the LoRA adapters of requests; None: SGLang takes none."""
    device: str
    progress: Progress


class SglangEngine:
    """A `TokenEngine`; see `parallax_core.api.Engine`. Belongs to one event loop."""

    def __init__(self, load: EngineLoad, start_child: StartChild) -> None:
        self._load = load
        self._start_child = start_child
        self._health = Health(state="starting")
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._numbers = count()
        self._streams: dict[int, AnswerStream] = {}
        """The open streams, by the number of each of their answers."""
        self._child: ChildProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def info(self) -> EngineInfo:
        """The properties of the engine."""
        assert self._info is not None, "the engine has started"
        return self._info

    async def start(self) -> None:
        """Start the child process and load the model; see `Engine.start`."""
        if self._is_stopped:
            raise Unavailable(STOPPED)
        try:
            await self._open()
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self._health = Health(state="failed", reason=reason)
            child = self._child
            await self._close()
            if child is not None:
                child.link.close()  # it has no transport yet if the engine was stopped very early
            if isinstance(error, OSError):
                raise BackendFailed(f"SGLang's process cannot be started: {error}") from error
            raise

    async def stop(self) -> None:
        """End every stream, and the child process; see `Engine.stop`."""
        self._is_stopped = True
        self._health = Health(state="draining", reason=STOPPED)
        self._end_streams("aborted", STOPPED)
        await self._close()

    def submit(self, request: Request) -> AnswerStream:
        """Submit a request; see `Engine.submit`."""
        if self._health.state != "ready" or self._writer is None:
            raise Unavailable(f"the engine is {self._health.state}", self._health.reason)
        check_fields(request)
        folder = self._find_adapter(request.adapter) if request.adapter else ""
        stream = AnswerStream(request, [next(self._numbers) for _ in range(request.n)], self._abort)
        for number in stream.numbers:
            self._streams[number] = stream
            self._send(_make_generate(request, number, folder))
        self._stats = replace(self._stats, prompt_tokens=self._stats.prompt_tokens + len(request.prompt))
        return stream

    def health(self) -> Health:
        """Return the current health; see `Engine.health`."""
        return self._health

    def stats(self) -> tuple[EngineStats, ...]:
        """Return what the engine has done, and its load as SGLang last stated it; see `Measured`."""
        return (self._stats,)

    def _find_adapter(self, key: str) -> str:
        """Return the folder of an adapter.

        Raises:
            InvalidRequest: if it is not here, or not for this model.
        """
        if self._load.adapters is None:
            message = "this engine takes no adapters: max_loras of [sglang] is 0"
            raise InvalidRequest(message, "adapter", "an operator can allow some with PARALLAX_SGLANG__MAX_LORAS=4")
        return str(self._load.adapters.find(key))

    async def _open(self) -> None:
        if self._load.adapters is not None:
            await asyncio.to_thread(self._load.adapters.open)
        self._child = child = self._start_child()
        reader, self._writer = await asyncio.open_connection(sock=child.link)
        self._send(self._load.message)
        self._report(0)
        while self._info is None:
            match await read(reader):
                case Phase(done):
                    self._report(done)
                case Loaded(info):
                    self._info = self._complete(info)
                case Failed(message, hint):
                    raise BackendFailed(message, hint or RESTART_HINT)
                case _:
                    raise BackendFailed(STOPPED if self._is_stopped else child.explain(), RESTART_HINT)
        self._health = Health(state="ready")
        self._reading = asyncio.create_task(self._read(reader, child.explain))

    def _complete(self, info: EngineInfo) -> EngineInfo:
        """Return SGLang's description of an engine, completed by this backend's limits."""
        adapter: frozenset[RequestField] = frozenset({"adapter"} if self._load.adapters else ())
        return replace(
            info,
            honours=HONOURED | adapter,
            max_answers=MAX_ANSWERS,
            max_logprobs=MAX_LOGPROBS,
            device=self._load.device,
        )

    def _report(self, done: int) -> None:
        self._load.progress("starting SGLang", done, PHASES, "items")

    async def _read(self, reader: asyncio.StreamReader, explain: Callable[[], str]) -> None:
        """Read what the child process sends, until it ends."""
        while (message := await read(reader)) is not None:
            if isinstance(message, Failed):
                self._fail(message.message)
                return
            self._take(message)
        self._fail(explain())

    def _fail(self, reason: str) -> None:
        if not self._is_stopped:
            logger.error("%s", reason)
            self._health = Health(state="failed", reason=reason)
            self._end_streams("error", reason)

    def _take(self, message: Frame) -> None:
        match message:
            case Chunks(chunks):
                for chunk in chunks:
                    self._deliver(chunk)
            case Load(running, waiting, used, total):
                pool = PoolUse(stage=0, kind="full", used=used, total=total)
                self._stats = replace(self._stats, running=running, waiting=waiting, pools=(pool,))

    def _deliver(self, chunk: Chunk) -> None:
        stream = self._streams.get(chunk.number)
        if stream is None:
            return
        cached = stream.put(chunk)
        stats = self._stats
        self._stats = replace(
            stats,
            cached_tokens=stats.cached_tokens + cached,
            output_tokens=stats.output_tokens + len(chunk.tokens),
        )
        if chunk.ended is not None:
            self._streams.pop(chunk.number, None)
        if stream.is_over:
            self._abort(stream)

    def _abort(self, stream: AnswerStream) -> None:
        """Abort the answers of a stream that have not ended."""
        numbers = tuple(number for number in stream.numbers if self._streams.pop(number, None) is not None)
        if numbers:
            self._send(Stop(numbers))

    def _end_streams(self, reason: str, message: str) -> None:
        streams = dict.fromkeys(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.end("aborted" if reason == "aborted" else "error", message)

    def _send(self, message: Frame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    async def _close(self) -> None:
        """End the child process. Idempotent."""
        reading, self._reading = self._reading, None
        writer, self._writer = self._writer, None
        child, self._child = self._child, None
        if child is not None:
            child.end()
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
            await asyncio.wait([reading])
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _make_generate(request: Request, number: int, folder: str) -> Generate:
    options = {
        "priority": request.priority,
        "salt": request.salt,
        "adapter": request.adapter,
        "folder": folder,
        "logprobs": request.logprobs,
        "prompt_logprobs": request.prompt_logprobs,
    }
    return Generate(number, request.prompt, list_sampling(request), options, tuple(sorted(request.stop_ids)))
