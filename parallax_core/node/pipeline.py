"""An engine made of stages; in this form one stage holding the whole model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from parallax_core.base.errors import BackendFailed, ParallaxError, Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Finish, Health, Reason, Request
from parallax_core.contracts.stage import Stage, StageInfo
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.head import Head, Step
from parallax_core.node.host import StageHost
from parallax_core.node.lane import Lane
from parallax_core.node.stream import QueueStream

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 1.5
"""How long `PipelineEngine.stop` waits for a step that is still running."""

STOPPED = "the server is shutting down"


class PipelineEngine:
    """Runs a head on the event loop and its stage on a lane."""

    def __init__(self, open_stage: Callable[[], Stage], decode: Decode) -> None:
        self._open_stage = open_stage
        self._decode = decode
        self._lane: Lane | None = None
        self._host: StageHost | None = None
        self._info: StageInfo | None = None
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._streams: dict[RequestId, QueueStream] = {}
        self._work = asyncio.Event()
        self._health = Health(state="starting")

    async def start(self) -> None:
        """Open the stage and begin to serve.

        Raises:
            ParallaxError: if the stage cannot be opened; nothing is left running then.
        """
        lane = Lane("parallax-stage")
        try:
            info = await lane.call(self._open)
        except BaseException as error:
            self._health = Health(state="failed", reason=str(error))
            lane.call(self._release)
            lane.close()
            if isinstance(error, ParallaxError) or not isinstance(error, Exception):
                raise
            message = f"the model could not be loaded: {type(error).__name__}: {error}"
            raise BackendFailed(message, "run again with --verbose for the traceback") from error
        self._lane, self._info = lane, info
        self._head = Head([info], self._decode)
        self._task = asyncio.get_running_loop().create_task(self._serve(self._head, lane))
        self._health = Health(state="ready")

    async def stop(self) -> None:
        """End every stream with an error and close the stage; a step still running is waited for only a moment."""
        if self._health.state != "failed":
            self._health = Health(state="draining", reason=STOPPED)
        self._end_streams("aborted", STOPPED)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        lane, self._lane = self._lane, None
        if lane is not None:
            await asyncio.wait([lane.call(self._release)], timeout=CLOSE_TIMEOUT_S)
            lane.close()

    def submit(self, request: Request) -> QueueStream:
        """Accept a request; see `Engine.submit`."""
        if self._head is None or self._health.state != "ready":
            message = f"the engine is {self._health.state}"
            raise Unavailable(message, self._health.reason)
        self._head.accept(request, _now())
        stream = QueueStream(abort=partial(self._abort, request.id))
        self._streams[request.id] = stream
        self._work.set()
        return stream

    def health(self) -> Health:
        """Return the state of the engine."""
        return self._health

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself; only once the engine is ready."""
        assert self._info is not None, "the engine is not ready"
        return self._info

    async def _serve(self, head: Head, lane: Lane) -> None:
        try:
            while True:
                head.expire(_now())
                step = head.plan(_now())
                self._deliver(head.take_deltas())
                if step is None:
                    await self._wait(head)
                else:
                    await self._run(head, lane, step)
        except Exception as error:
            logger.exception("engine failed")
            self._health = Health(state="failed", reason=f"{type(error).__name__}: {error}")
            self._end_streams("error", self._health.reason)

    async def _run(self, head: Head, lane: Lane, step: Step) -> None:
        host = self._host
        assert host is not None
        try:
            result = await lane.call(partial(host.run, step))
        except BackendFailed as error:
            logger.exception("step failed")
            head.fail(error.message)
        else:
            head.absorb(result, _now())
        self._deliver(head.take_deltas())

    async def _wait(self, head: Head) -> None:
        """Wait for work: a request that comes or goes, the end of a hold, or a deadline."""
        waits = [hold] if (hold := head.hold_s(_now())) else []
        if (deadline := head.next_deadline()) is not None:
            waits.append(max(0.0, deadline - _now()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._work.wait(), min(waits) if waits else None)
        self._work.clear()

    def _deliver(self, deltas: list[tuple[RequestId, Delta]]) -> None:
        for request_id, delta in deltas:
            if delta.finish is None:
                self._streams[request_id].put(delta)
            else:
                self._streams.pop(request_id).put(delta)

    def _abort(self, request_id: RequestId) -> None:
        if self._streams.pop(request_id, None) is not None and self._head is not None:
            self._head.cancel(request_id)
            self._work.set()

    def _end_streams(self, reason: Reason, message: str) -> None:
        finish = Finish(reason=reason, prompt_tokens=0, output_tokens=0, message=message)
        for request_id in list(self._streams):
            self._streams.pop(request_id).put(Delta(finish=finish))

    def _open(self) -> StageInfo:
        """Runs on the lane."""
        self._host = StageHost(self._open_stage())
        return self._host.info

    def _release(self) -> None:
        """Runs on the lane."""
        host, self._host = self._host, None
        if host is not None:
            host.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
