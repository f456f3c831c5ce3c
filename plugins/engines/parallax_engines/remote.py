"""An engine in a worker process, which is started again whenever it is lost."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from dataclasses import replace
from operator import add

from parallax_core.api import (
    EngineInfo,
    EngineStats,
    InvalidRequest,
    LayerRange,
    ParallaxError,
    ReplicaStatus,
    Request,
    RequestId,
    StageStatus,
    Unavailable,
)
from parallax_core.api.node import Backoff, describe_error
from parallax_core.api.replica import EngineBase, QueueStream, ReplicaPlan
from parallax_engines.host import EngineHost, HostedEngine
from parallax_engines.link import SILENCE_S, EngineLink

logger = logging.getLogger(__name__)

TOTALS = ("steps", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions")
"""The fields of `EngineStats` that only grow."""


class RemoteEngine(EngineBase[HostedEngine]):
    """A `TokenEngine` over a link to its worker process.

    When the process or its engine is lost, the health becomes ``starting``, every stream ends with an error, and the
    process is started again, however long that takes. `ReplicaPlan.on_lost` is called with the reason of each loss.
    """

    def __init__(self, plan: ReplicaPlan) -> None:
        """Serve with an engine that ``plan`` describes, not started."""
        super().__init__(plan.on_lost)
        self._plan = plan
        self.host = EngineHost(plan)
        """Opens the engine in its process."""
        self._silence_s = plan.step_timeout_s or SILENCE_S
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
        return self._add_stream(request.id, self._plan.backlog)

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
        node, info, [stats] = self._plan.node, self._info, self.stats()
        stage = StageStatus(
            stage=0,
            node=node.name,
            host=node.host,
            pid=node.pid,
            backend=self._plan.backend,
            restarts=self.host.restarts,
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
        return await self.host.open()

    def _begin(self, opened: HostedEngine) -> Coroutine[None, None, None]:
        self._link = link = self._take_over(opened)
        return self._serve(link)

    async def _release(self) -> None:
        await self.host.close()

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
            return await self.host.explain(loss)
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
                await self.host.abandon()
                await backoff.wait(reason)
                opened = await self.host.open()
            except ParallaxError as error:
                reason = f"the engine cannot be started: {error.message}{f' ({error.hint})' if error.hint else ''}"
            except Exception as error:  # the next attempt may succeed, whatever the error is
                logger.exception("engine cannot be started")
                reason = f"the engine cannot be started: {describe_error(error)}"
            else:
                return self._take_over(opened)

    def _take_over(self, opened: HostedEngine) -> EngineLink:
        """Return a link with the requests of an engine that has opened."""
        self._info = info = opened.info
        logger.debug(
            "engine ready layers=%d device=%r dtype=%s context=%d tokens seed=%s",
            info.num_layers,
            info.device,
            info.dtype,
            info.context_length,
            info.seed,
        )
        return EngineLink(opened.link, self._deliver, self._silence_s)
