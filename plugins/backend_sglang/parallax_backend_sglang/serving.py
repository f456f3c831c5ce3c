"""Serves a parent process with `sglang.Engine`, in the child process."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import socket
import threading
from collections.abc import Mapping
from typing import Any

from parallax_backend_sglang import compat
from parallax_backend_sglang.chunks import AnswerTrimmer, list_options
from parallax_backend_sglang.frames import (
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
)
from parallax_backend_sglang.inbox import Inbox, end_group

LOAD_S = 0.5
"""Seconds between two looks at the load."""


def serve(link: socket.socket, inbox: Inbox[Frame], message: LoadEngine) -> None:
    """Load an engine, do what ``inbox`` receives, and send over ``link``, until the process ends.

    Raises:
        Unsupported: if SGLang lacks what is used, or the family of the model.
    """
    compat.check_interface(compat.ENGINE)
    compat.check_architecture(message.architecture)
    link.sendall(pack(Phase(1)))
    engine = compat.make_engine(message.arguments)
    info = compat.describe_engine(engine)
    compat.unlink_shared_memory(engine)
    server = EngineServer(engine, link)
    link.sendall(pack(Phase(2)))
    link.sendall(pack(Loaded(info)))
    threading.Thread(target=server.watch_processes, name="parallax-watch", daemon=True).start()
    engine.loop.run_until_complete(server.run(inbox))


class EngineServer:
    """Generates answers and sends their chunks; those of one turn of the event loop share a frame."""

    def __init__(self, engine: Any, link: socket.socket) -> None:  # noqa: ANN401 -- SGLang has no types
        self._engine = engine
        self._link = link
        self._eos = compat.find_eos_ids(engine)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._adapters: dict[str, asyncio.Task[None]] = {}
        """By key, what loads each LoRA adapter."""
        self._stopped: set[int] = set()
        self._batch: list[Chunk] = []
        self._sending = threading.Lock()

    async def run(self, inbox: Inbox[Frame]) -> None:
        """Serve until the process ends."""
        queue: asyncio.Queue[Frame] = asyncio.Queue()
        inbox.deliver_to(queue)
        watching = asyncio.create_task(self._watch_load())
        watching.add_done_callback(self._fail)
        while True:
            match await queue.get():
                case Generate() as asked:
                    self._tasks[asked.number] = asyncio.create_task(self._generate(asked))
                case Stop(numbers):
                    for number in numbers:
                        self._stop(number)

    def watch_processes(self) -> None:
        """Wait on a thread until a process of SGLang ends; then tell the parent, and end this process.

        SGLang notices that too, but first collects what may explain it, for up to a minute.
        """
        processes = multiprocessing.active_children()
        ready = multiprocessing.connection.wait([process.sentinel for process in processes])
        pids = [process.pid for process in processes if process.sentinel in ready]
        self._send(Failed(f"SGLang failed: its process {pids[0]} has ended"))
        end_group()

    def _stop(self, number: int) -> None:
        if number in self._tasks:
            self._stopped.add(number)
            compat.abort(self._engine, name_request(number))

    async def _generate(self, asked: Generate) -> None:
        number = asked.number
        trimmer = AnswerTrimmer(asked, self._eos)
        try:
            if number in self._stopped:
                return
            await self._load_adapter(asked.options)
            stream = await self._engine.async_generate(
                input_ids=list(asked.prompt),
                sampling_params=trimmer.sampling,
                stream=True,
                rid=name_request(number),
                **list_options(asked.options),
            )
            async with contextlib.aclosing(stream):
                async for found in stream:
                    if number in self._stopped:  # it may have been stopped before SGLang knew it
                        compat.abort(self._engine, name_request(number))
                    elif (chunk := trimmer.cut(found)) is not None:
                        self._put(chunk)
                        if trimmer.is_over:
                            self._stop(number)
        except Exception as error:  # noqa: BLE001 -- the client has to know any error
            self._put(Chunk(number=number, ended="error", message=f"SGLang: {error}"))
        finally:
            self._stopped.discard(number)
            del self._tasks[number]

    async def _load_adapter(self, options: Mapping[str, Any]) -> None:
        """Load the LoRA adapter of a request, once."""
        if key := options["adapter"]:
            loading = self._adapters.get(key)
            if loading is None or (loading.done() and loading.exception() is not None):
                loading = asyncio.create_task(compat.load_adapter(self._engine, key, options["folder"]))
                self._adapters[key] = loading
            await asyncio.shield(loading)

    def _put(self, chunk: Chunk) -> None:
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._flush)
        self._batch.append(chunk)

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._send(Chunks(tuple(batch)))

    async def _watch_load(self) -> None:
        last: Load | None = None
        while True:
            if (load := await compat.read_load(self._engine)) != last:
                self._send(load)
                last = load
            await asyncio.sleep(LOAD_S)

    def _fail(self, task: asyncio.Task[None]) -> None:
        """Tell the parent why a task that runs for ever has ended, and end this process."""
        error = task.exception() if not task.cancelled() else None
        self._send(Failed(f"SGLang failed: {type(error).__name__}: {error}"))
        end_group()

    def _send(self, message: Frame) -> None:
        """Send a message; the parent reads at once, so this does not block for long."""
        with contextlib.suppress(OSError), self._sending:  # the parent has closed the link, which ends this process
            self._link.sendall(pack(message))


def name_request(number: int) -> str:
    """Return the id of a request at SGLang."""
    return f"parallax-{number}"
