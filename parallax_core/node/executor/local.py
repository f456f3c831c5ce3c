"""The stages of a pipeline that work in this process, each on a lane of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from itertools import pairwise

from parallax_core.base.errors import EngineFailed, StageLost
from parallax_core.contracts.stage import Stage, StageInfo
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import LEASE, StageLocation
from parallax_core.node.executor.compatibility import check_stages
from parallax_core.node.executor.load_clock import LOADING_HINT, LoadClock
from parallax_core.node.handshake import greet, welcome
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.worker.loop import StageChannels, StageLoop
from parallax_core.node.worker.runtime import StageKey, StageRuntime
from parallax_core.node.worker.thread import StageThread

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 0.7
"""How long `LocalExecutor.close` waits for a step that is still running."""

HANG_S = 1.0
"""How long a lane that is said to hang may yet take to come to its end."""
HEAD = "head"


class LocalExecutor:
    """An `Executor` with stages in this process, each on a thread of its own.

    After a loss, lost stages are opened again on the same threads, and the others drop their sequences. A thread that
    hangs cannot be ended, so it ends the process.
    """

    most_failures: int | None = 5

    def __init__(
        self,
        stages: Sequence[Callable[[], Stage]],
        plan: PipelineOptions | None = None,
        backends: Sequence[str] = (),
        loading: LoadClock | None = None,
    ) -> None:
        """Open the stages by ``stages``, in the order of the layers, each on the thread that will run it.

        ``backends`` says what runs each, for those who look; ``loading`` is told how far loading is.
        """
        plan = plan or PipelineOptions()
        self._loading = loading or LoadClock()
        self._places = [StageKey(LEASE, index) for index in range(len(stages))]
        self._hosts = [StageRuntime(stage, place) for stage, place in zip(stages, self._places, strict=True)]
        self._plan = plan
        self._backends = tuple(backends) or ("",) * len(stages)
        self._threads: list[StageThread] = []
        self._transports: list[Transport] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.channels: tuple[Channel, ...] = ()
        """From the head to each stage, once they are open."""

    async def open(self) -> tuple[StageInfo, ...]:
        """Open all stages at once, and have them work; one that fails leaves the others to `close`.

        Raises:
            EngineFailed: if a lane hangs.
            ParallaxError: if the stages do not fit each other.
            Exception: what opening a stage raised.
        """
        await self._unlink()
        self._threads = self._threads or [StageThread(f"parallax-stage-{place.stage}") for place in self._places]
        self._loading.start()
        opening = [thread.call(host.reopen) for thread, host in zip(self._threads, self._hosts, strict=True)]
        await self._wait_open(opening)
        infos = tuple(await asyncio.gather(*opening))
        check_stages(infos)
        self.channels = await self._link()
        return infos

    async def abandon(self, stage: int) -> None:
        """Wait a moment longer for the lane of a stage, and say where it hangs.

        Raises:
            EngineFailed: if it still does: nothing can end a thread.
        """
        thread = self._threads[stage]
        done, _ = await asyncio.wait([thread.call(_do_nothing)], timeout=HANG_S)
        if not done:
            logger.critical("stage %d hangs here:\n%s", stage, thread.find_place())
            raise EngineFailed(f"the thread of stage {stage} hangs, and nothing but a new process can end that")

    async def explain(self, loss: StageLost) -> StageLost:
        """Return ``loss``: of stages that share a process none ends alone."""
        return loss

    async def close(self) -> None:
        """End the work and close the stages, at once or as soon as a step that is still running has ended.

        Waits for at most `CLOSE_TIMEOUT_S`; what hangs for longer ends with the process.
        """
        await self._unlink()
        threads, self._threads = self._threads, []
        closing = [thread.call(host.close) for thread, host in zip(threads, self._hosts, strict=False)]
        for future in closing:
            future.add_done_callback(_log_failure)
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)
        for thread in threads:
            thread.close()

    def needs(self) -> str:
        """Return nothing: all there is to do is done here."""
        return ""

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs: here."""
        names = map(_name, range(len(self._places)))
        return tuple(
            StageLocation(node=name, backend=backend, host=socket.gethostname(), pid=os.getpid())
            for name, backend in zip(names, self._backends, strict=True)
        )

    async def _wait_open(self, opening: Sequence[asyncio.Future[StageInfo]]) -> None:
        """Wait until all stages are open or one fails.

        Raises:
            EngineFailed: if nothing is heard of their progress for too long.
        """
        limit_s, left = self._plan.load_timeout_s, set(opening)
        while left and not any(future.done() and future.exception() for future in opening):
            _, left = await asyncio.wait(
                left, timeout=max(0.01, limit_s - self._loading.silence_s), return_when=asyncio.FIRST_COMPLETED
            )
            if left and self._loading.silence_s >= limit_s:
                stage = next(index for index, future in enumerate(opening) if not future.done())
                logger.critical("stage %d loads here:\n%s", stage, self._threads[stage].find_place())
                raise EngineFailed(f"stage {stage} has not said for {limit_s:g} s how far loading is", LOADING_HINT)

    async def _unlink(self) -> None:
        """End the work, and the links."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        transports, self._transports = self._transports, []
        for transport in transports:
            await transport.stop()

    async def _link(self) -> tuple[Channel, ...]:
        """Link the head to every stage, and every stage to the next, and begin to work."""
        head = await self._start(HEAD, "")
        nodes = [await self._start(_name(place.stage), self._plan.listen) for place in self._places]
        steering = [await _join(head, node, _name(index)) for index, node in enumerate(nodes)]
        hops = [await _join(one, other, _name(index)) for index, (one, other) in enumerate(pairwise(nodes), 1)]
        befores = [None, *(far for _, far in hops)]
        afters = [*(near for near, _ in hops), None]
        for place, node in zip(self._places, nodes, strict=True):
            index = place.stage
            channels = StageChannels(steering[index][1], befores[index], afters[index])
            worker = StageLoop(self._threads[index], self._hosts[index], place, channels, self._plan.heartbeat_s)
            self._tasks.append(asyncio.create_task(_work(worker, node)))
        return tuple(near for near, _ in steering)

    async def _start(self, node: str, listen: str) -> Transport:
        transport = self._plan.transport(TransportPlan(node=node, listen=listen))
        self._transports.append(transport)
        await transport.start()
        return transport


async def _join(one: Transport, other: Transport, name: str) -> tuple[Channel, Channel]:
    """Link ``one`` to ``other``, whose name is ``name``, and have them greet; return the ends of both."""
    links = await asyncio.gather(one.connect(other.address, name), other.accept())
    near, far = map(Channel, links)
    await asyncio.gather(greet(near, far.peer), welcome(far, near.peer))
    return near, far


async def _work(worker: StageLoop, node: Transport) -> None:
    """Work, and let go of all links in the end, so that whoever is at their other ends learns of it."""
    try:
        await worker.run()
    finally:
        await node.stop()


def _do_nothing() -> None:
    """Show that the lane runs calls."""


def _name(stage: int) -> str:
    return f"stage-{stage}"


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("stage not closed cleanly: %s: %s", type(error).__name__, error)
