"""Runs the stages of a pipeline in this process, each on its own thread."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from itertools import pairwise

from parallax_core.base.errors import EngineFailed, StageLost
from parallax_core.base.ids import HEAD
from parallax_core.contracts.stage import Stage, StageInfo
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import StageLocation
from parallax_core.node.executor.compatibility import check_stages
from parallax_core.node.executor.load_clock import LOADING_HINT, LoadClock
from parallax_core.node.handshake import greet, welcome
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.runtime import StageRuntime
from parallax_core.node.worker.thread import StageThread

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 0.7
"""Seconds `LocalExecutor.close` waits for a running step."""

HANG_S = 1.0
"""Seconds of grace for a thread whose step seems to hang, before the engine fails."""


class LocalExecutor:
    """An `Executor` whose stages run in this process, each on its own thread.

    After a loss, lost stages open again on the same threads, and the others drop their sequences. A thread that hangs
    cannot be ended, so the engine fails and the process has to end.
    """

    most_failures: int | None = 5

    def __init__(
        self,
        stages: Sequence[Callable[[], Stage]],
        options: PipelineOptions | None = None,
        backends: Sequence[str] = (),
        loading: LoadClock | None = None,
    ) -> None:
        """Open each stage with its function in ``stages``, in the order of the layers, on the thread that will run it.

        ``backends`` names the backend of each stage for the status; loading reports its progress to ``loading``.
        """
        options = options or PipelineOptions()
        self._loading = loading or LoadClock()
        self._runtimes = [StageRuntime(stage, number) for number, stage in enumerate(stages)]
        self._options = options
        self._backends = tuple(backends) or ("",) * len(stages)
        self._threads: list[StageThread] = []
        self._transports: list[Transport] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.channels: tuple[Channel, ...] = ()
        """The channels from the head to each stage, once the stages are open."""

    async def open(self) -> tuple[StageInfo, ...]:
        """Open all stages in parallel and start their loops; if one fails, the others stay open until `close`.

        Raises:
            EngineFailed: if a thread hangs.
            ParallaxError: if the stages do not fit each other.
            Exception: whatever opening a stage raised.
        """
        await self._unlink()
        names = (f"parallax-stage-{number}" for number in range(len(self._runtimes)))
        self._threads = self._threads or [StageThread(name) for name in names]
        self._loading.start()
        opening = [thread.call(runtime.reopen) for thread, runtime in zip(self._threads, self._runtimes, strict=True)]
        await self._wait_open(opening)
        infos = tuple(await asyncio.gather(*opening))
        check_stages(infos)
        self.channels = await self._link()
        return infos

    async def abandon(self, stage: int) -> None:
        """Wait a moment longer for the thread of a stage; log where it hangs if it does.

        Raises:
            EngineFailed: if the thread still hangs: nothing can end a thread.
        """
        thread = self._threads[stage]
        done, _ = await asyncio.wait([thread.call(_do_nothing)], timeout=HANG_S)
        if not done:
            logger.critical("stage %d hangs here:\n%s", stage, thread.find_place())
            raise EngineFailed(f"the thread of stage {stage} hangs, and only a new process can end that")

    async def replace(self, stage: int) -> bool:
        """Return False: stages of this process do not leave it."""
        del stage
        return False

    async def explain(self, loss: StageLost) -> StageLost:
        """Return ``loss`` itself: stages that share a process do not end one by one."""
        return loss

    async def close(self) -> None:
        """Stop the loops and close the stages, at once or as soon as the running step has ended.

        Waits for at most `CLOSE_TIMEOUT_S`; a thread that hangs for longer ends with the process.
        """
        await self._unlink()
        threads, self._threads = self._threads, []
        closing = [thread.call(runtime.close) for thread, runtime in zip(threads, self._runtimes, strict=False)]
        for future in closing:
            future.add_done_callback(_log_failure)
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)
        for thread in threads:
            thread.close()

    def needs(self) -> str:
        """Return an empty text: an operator never has to start these stages."""
        return ""

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs: in this process."""
        names = map(_name, range(len(self._runtimes)))
        return tuple(
            StageLocation(node=name, backend=backend, host=socket.gethostname(), pid=os.getpid())
            for name, backend in zip(names, self._backends, strict=True)
        )

    async def _wait_open(self, opening: Sequence[asyncio.Future[StageInfo]]) -> None:
        """Wait until all stages are open or one fails.

        Raises:
            EngineFailed: if loading reports no progress for ``load_timeout_s``.
        """
        limit_s, left = self._options.load_timeout_s, set(opening)
        while left and not any(future.done() and future.exception() for future in opening):
            _, left = await asyncio.wait(
                left, timeout=max(0.01, limit_s - self._loading.silence_s), return_when=asyncio.FIRST_COMPLETED
            )
            if left and self._loading.silence_s >= limit_s:
                stage = next(index for index, future in enumerate(opening) if not future.done())
                logger.critical("stage %d loads here:\n%s", stage, self._threads[stage].find_place())
                raise EngineFailed(f"stage {stage} has reported no loading progress for {limit_s:g} s", LOADING_HINT)

    async def _unlink(self) -> None:
        """Stop the loops and close the links."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        transports, self._transports = self._transports, []
        for transport in transports:
            await transport.stop()

    async def _link(self) -> tuple[Channel, ...]:
        """Link the head to every stage and every stage to the next, and start the loops."""
        head = await self._start(HEAD, "")
        nodes = [await self._start(_name(index), self._options.listen) for index in range(len(self._runtimes))]
        head_links = [await _connect(head, node, _name(index)) for index, node in enumerate(nodes)]
        stage_links = [
            await _connect(one, other, _name(index)) for index, (one, other) in enumerate(pairwise(nodes), 1)
        ]
        befores = [None, *(far for _, far in stage_links)]
        afters = [*(near for near, _ in stage_links), None]
        for index, node in enumerate(nodes):
            channels = StageChannels(head_links[index][1], befores[index], afters[index])
            loop = StageLoop(self._threads[index], self._runtimes[index], channels, self._options.heartbeat_s)
            self._tasks.append(asyncio.create_task(_run_loop(loop, node)))
        return tuple(near for near, _ in head_links)

    async def _start(self, node: str, listen: str) -> Transport:
        transport = self._options.transport(TransportPlan(node=node, listen=listen))
        self._transports.append(transport)
        await transport.start()
        return transport


async def _connect(one: Transport, other: Transport, name: str) -> tuple[Channel, Channel]:
    """Link ``one`` to ``other``, the node called ``name``, run the handshake, and return both ends."""
    links = await asyncio.gather(one.connect(other.address, name), other.accept())
    near, far = map(Channel, links)
    await asyncio.gather(greet(near, far.peer), welcome(far, near.peer))
    return near, far


async def _run_loop(loop: StageLoop, node: Transport) -> None:
    """Run a stage loop, and finally close the node's links, so that its peers notice the end."""
    try:
        await loop.run()
    finally:
        await node.stop()


def _do_nothing() -> None:
    """Return, which shows that the thread still runs calls."""


def _name(stage: int) -> str:
    return f"stage-{stage}"


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("stage not closed cleanly: %s: %s", type(error).__name__, error)
