"""An engine made of stages; in this form one stage holding the whole model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parallax_core.base.errors import BackendFailed, ParallaxError, Unavailable
from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Delta, Finish, Health, Request
from parallax_core.contracts.stage import Stage, StageInfo, StageResult
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.head import Head, Step
from parallax_core.node.lane import Lane
from parallax_core.node.stream import QueueStream

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 1.5
"""How long `PipelineEngine.stop` waits for a step that is still running."""

STOPPED = "the server is shutting down"


class PipelineEngine:
    """Runs a head on the event loop and its stage on a lane, one step in flight."""

    def __init__(self, open_stage: Callable[[], Stage], decode: Decode) -> None:
        self._open_stage = open_stage
        self._decode = decode
        self._lane: Lane | None = None
        self._stage: Stage | None = None
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._streams: dict[SeqId, QueueStream] = {}
        self._work = asyncio.Event()
        self._health = Health(state="starting")

    async def start(self) -> None:
        """Open the stage and begin to serve.

        Raises:
            ParallaxError: if the stage cannot be opened; nothing is left running then.
        """
        lane = Lane("parallax-stage")
        try:
            stage = await lane.call(self._open)
        except BaseException as error:
            self._health = Health(state="failed", reason=str(error))
            lane.call(self._release)
            lane.close()
            if isinstance(error, ParallaxError) or not isinstance(error, Exception):
                raise
            message = f"the model could not be loaded: {type(error).__name__}: {error}"
            raise BackendFailed(message, "run again with --verbose for the traceback") from error
        self._lane = lane
        self._head = Head(stage.info, self._decode)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._health = Health(state="ready")

    async def stop(self) -> None:
        """End every stream with an error and close the stage; a step still running is waited for only a moment."""
        if self._health.state != "failed":
            self._health = Health(state="draining", reason=STOPPED)
        self._end_streams(STOPPED)
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
        seq = self._head.accept(request)
        stream = QueueStream(abort=lambda: self._abort(seq))
        self._streams[seq] = stream
        self._work.set()
        return stream

    def health(self) -> Health:
        """Return the state of the engine."""
        return self._health

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself; only while the engine is ready."""
        assert self._stage is not None, "the engine is not ready"
        return self._stage.info

    async def _serve(self) -> None:
        assert self._head is not None
        try:
            while True:
                await self._work.wait()
                step = self._head.plan()
                if step is None:
                    self._work.clear()
                else:
                    await self._run(self._head, step)
        except Exception as error:
            logger.exception("engine failed")
            self._health = Health(state="failed", reason=f"{type(error).__name__}: {error}")
            self._end_streams(self._health.reason)

    async def _run(self, head: Head, step: Step) -> None:
        assert self._lane is not None
        try:
            result = await self._lane.call(lambda: self._step(step))
        except BackendFailed as error:
            logger.exception("step failed")
            self._deliver(head.abandon(error.message))
        else:
            self._deliver(head.absorb(result))

    def _step(self, step: Step) -> StageResult:
        """Runs on the lane. A batch that fails costs its requests; an edit that fails costs the stage."""
        stage = self._stage
        assert stage is not None
        stage.edit(step.edits)
        if not step.batch.rows:
            return StageResult()
        try:
            return stage.step(step.batch).wait()
        except Exception as error:
            message = f"the model failed on this step: {type(error).__name__}: {error}"
            raise BackendFailed(message) from error

    def _deliver(self, deltas: list[tuple[SeqId, Delta]]) -> None:
        for seq, delta in deltas:
            if delta.finish is None:
                self._streams[seq].put(delta)
            else:
                self._streams.pop(seq).put(delta)

    def _abort(self, seq: SeqId) -> None:
        if self._streams.pop(seq, None) is not None and self._head is not None:
            self._head.cancel(seq)
            self._work.set()

    def _end_streams(self, message: str) -> None:
        finish = Finish(reason="error", prompt_tokens=0, output_tokens=0, message=message)
        for seq in list(self._streams):
            self._streams.pop(seq).put(Delta(finish=finish))

    def _open(self) -> Stage:
        """Runs on the lane."""
        self._stage = self._open_stage()
        return self._stage

    def _release(self) -> None:
        """Runs on the lane."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()
