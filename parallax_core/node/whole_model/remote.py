"""An engine in a worker process, which is started again whenever it is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from operator import add

from parallax_core.base.errors import InvalidRequest, ParallaxError, Unavailable
from parallax_core.base.faults import describe_error
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import EngineStats, Request
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.status import ReplicaStatus, StageStatus
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.node.backoff import Backoff
from parallax_core.node.engine_base import EngineBase
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.stream import QueueStream
from parallax_core.node.whole_model.host import EngineHost, HostedEngine
from parallax_core.node.whole_model.link import SILENCE_S, EngineLink

logger = logging.getLogger(__name__)

TOTALS = ("steps", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions")
"""The fields of `EngineStats` that only grow."""


class RemoteEngine(EngineBase[HostedEngine]):
    """A `TokenEngine` over a link to its worker process.

    When the process or its engine is lost, the health becomes ``starting``, every stream ends with an error, and the
    process is started again, however long that takes. ``on_lost`` is called with the reason of each loss.
    """

    def __init__(
        self, host: EngineHost, options: PipelineOptions | None = None, on_lost: Callable[[str], None] | None = None
    ) -> None:
        """Serve with the engine of ``host``; of ``options``, those apply that do not concern stages."""
        super().__init__(on_lost)
        self._host = host
        options = options or PipelineOptions()
        self._backlog = options.backlog
        self._silence_s = options.step_timeout_s or SILENCE_S
        self._link: EngineLink | None = None
        self._info: EngineInfo | None = None
        self._earlier = EngineStats()
        """The totals of the processes that were lost."""
        self._num_lost = 0
        """Requests that had begun and ended with the process that computed them."""

    @property
    def info(self) -> EngineInfo:
        """The properties of the engine, as it last stated them; call it once the engine has started."""
        assert self._info is not None, "the engine has started"
        return self._info

    def submit(self, request: Request) -> QueueStream:
        """Submit a request to the worker process; see `Engine.submit`."""
        self.check_room()
        assert self._link is not None, "a ready engine has a link"
        if request.id in self._streams:
            raise InvalidRequest(f"request {request.id} has already been accepted")
        self._link.submit(request)
        return self._add_stream(request.id, self._backlog)

    def check_room(self) -> None:
        """Raise Unavailable if the engine is not ready; see `Admitting`."""
        if self._health.state != "ready":
            raise Unavailable(f"the engine is {self._health.state}", self.health().reason)

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the statistics that the engine last reported, with those of lost processes; see `Measured`."""
        latest = self._link.stats if self._link else EngineStats()
        totals = {name: add(getattr(self._earlier, name), getattr(latest, name)) for name in TOTALS}
        return (replace(latest, requests_lost=self._num_lost, **totals),)

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of the engine, which counts as one stage with the whole model; see `Described`."""
        where, info, [stats] = self._host.location, self._info, self.stats()
        stage = StageStatus(
            stage=0, node=where.node, host=where.host, pid=where.pid, backend=where.backend, restarts=where.restarts
        )
        if info is not None:
            stage = replace(
                stage,
                layers=LayerRange(0, info.num_layers),
                device=info.device,
                dtype=info.dtype,
                weight_bytes=info.weight_bytes,
                pools=stats.pools,
                steps=stats.steps,
                tokens=stats.prompt_tokens - stats.cached_tokens + stats.output_tokens,
            )
        return (ReplicaStatus(health=self.health(), stats=stats, num_losses=self._num_losses, stages=(stage,)),)

    async def _open(self) -> HostedEngine:
        return await self._host.open()

    def _begin(self, opened: HostedEngine) -> Coroutine[None, None, None]:
        self._info = opened.info
        self._link = link = EngineLink(opened, self._deliver, self._silence_s)
        return self._serve(link)

    async def _release(self) -> None:
        await self._host.close()

    def _needs(self) -> str:
        return ""

    def _cancel(self, request_id: RequestId) -> None:
        if self._link is not None:
            self._link.abort(request_id)

    async def _serve(self, link: EngineLink) -> None:
        """Serve with ``link`` and with those that replace it after losses."""
        backoff = Backoff(self._excuse)
        while True:
            try:
                await link.run()
            except ParallaxError as error:
                loss = error
            except Exception as error:
                logger.exception("link to an engine failed")
                loss = ParallaxError(describe_error(error))
            self._end_link()
            if link.has_answered:
                backoff.reset()
            reason = f"the engine was lost, and is started again: {await self._explain_loss(loss)}"
            logger.warning("%s", reason)
            self._change_health("starting", reason)
            self._num_lost += sum(stream.has_begun for stream in self._streams.values())
            self._end_streams("error", reason, list(self._streams))
            self._link = link = await self._reopen(reason, backoff)
            self._note_ready()
            logger.info("engine is ready again")

    async def _explain_loss(self, loss: ParallaxError) -> str:
        """Return the cause of a loss, or what is known of it if the search fails."""
        try:
            return await self._host.explain(loss)
        except Exception:  # the engine has to be started again, with or without an explanation
            logger.exception("loss cannot be explained")
            return loss.message

    def _end_link(self) -> None:
        """Take no more requests, and keep the totals of the lost process."""
        self._excuse("the engine was lost")
        [self._earlier] = self.stats()
        self._link = None

    async def _reopen(self, reason: str, backoff: Backoff) -> EngineLink:
        """End what is left of the engine, and open it again, with as many attempts as that takes; return its link."""
        while True:
            try:
                await self._host.abandon()
                await backoff.wait(reason)
                opened = await self._host.open()
            except ParallaxError as error:
                reason = f"the engine cannot be started: {error.message}{f' ({error.hint})' if error.hint else ''}"
            except Exception as error:  # the next attempt may succeed, whatever the error is
                logger.exception("engine cannot be started")
                reason = f"the engine cannot be started: {describe_error(error)}"
            else:
                self._info = opened.info
                return EngineLink(opened, self._deliver, self._silence_s)
