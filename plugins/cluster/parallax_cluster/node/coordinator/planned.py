"""An executor whose stages are on the nodes that a plan names, and move when the plan changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from parallax_cluster.layer_plan import Stages
from parallax_core.api import ParallaxError, PlacedStage, Row, StageInfo, StageLost
from parallax_core.api.node import Backoff, Channel, EngineFailed
from parallax_core.node.executor.base import StageLocation
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.executor.weights_check import DifferentWeights
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.loading import LinkFailed, LoadingHung, NodeRefused

logger = logging.getLogger(__name__)

PlanFault = NodeRefused | LoadingHung | DifferentWeights | LinkFailed
"""Why the stages of a pipeline cannot be opened, where others can: a node cannot load its layers, or does not reach the
next one."""


class Planning(Protocol):
    """What an executor tells whoever plans."""

    def explain(self) -> str:
        """Return what the cluster waits for; empty: nothing."""

    def note_fault(self, error: PlanFault) -> None:
        """Plan without what has failed: a node, its leases, or a link."""

    def can_serve(self, stages: Stages) -> bool:
        """Return whether the nodes of stages may be used, no other pipeline has them, and no link has failed."""

    async def replace(self, node: str) -> None:
        """Plan without a node, which leaves; return once the model has another place."""

    def note_step(self, stage: PlacedStage, rows: Sequence[Row], seconds: float) -> None:
        """Note how long a stage computed the rows of a step."""


class PlannedExecutor:
    """An `Executor` of one pipeline of a plan, which may have other stages each time it opens.

    It opens them as a `RemoteExecutor` does. When the plan moves the pipeline, opening begins anew, and a pipeline that
    serves is told (`Movable`); its requests go on when its new stages are open. If these cannot be opened, it goes back
    to those that served if it can, and else waits for another plan.
    """

    most_failures: int | None = None

    def __init__(
        self, executor: RemoteExecutor, planning: Planning, assign: Callable[[int, PlacedStage], StageAssignment]
    ) -> None:
        """Open stages with ``executor``; ``assign`` returns the assignment of a placed stage, by its number."""
        self._executor = executor
        self._planning = planning
        self._assign = assign
        self.note_opened: Callable[[Stages], None] = lambda _: None
        """Is told the stages whenever they were opened, before requests go on."""
        self._planned: Stages = ()
        self._opened: Stages | None = None
        """The stages of the last `open`; None: they are to be opened anew."""
        self._news = asyncio.Event()
        self.fault = ""
        """Why the last attempt to open the stages failed; empty: it did not, or there was none. See `Movable`."""
        self._end = ""
        """Why the pipeline is to end; empty: it is not."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels from the head to each stage, once the stages are open."""
        return self._executor.channels

    @property
    def planned(self) -> Stages:
        """The stages that it is to have; empty: it waits for a plan."""
        return self._planned

    @property
    def is_settled(self) -> bool:
        """Whether the stages that are planned are those that were opened."""
        return self._planned == self._opened

    def fail(self, reason: str) -> None:
        """End the pipeline for good, with its engine."""
        self._end = reason
        self._news.set()

    def move(self, stages: Stages) -> None:
        """Change the stages of the pipeline; without any, it waits for a plan."""
        if stages != self._planned:
            self._planned = stages
            self._news.set()

    async def wait_moved(self) -> str:
        """Wait until other stages are planned than those that are open; see `Movable`."""
        while self._planned == self._opened or not self._planned:
            await self._await_news()
        return f"its layers move to {describe_places(self._planned)}"

    def note_step(self, stage: int, rows: Sequence[Row], seconds: float) -> None:
        """Pass on how long a stage computed; see `StepObserver`."""
        if self._opened is not None:
            self._planning.note_step(self._opened[stage], rows, seconds)

    async def open(self) -> tuple[StageInfo, ...]:
        """Open the planned stages, as soon as there are some, with as many attempts as that takes."""
        backoff = Backoff(self._note_fault)
        while True:
            stages = await self._await_plan()
            self._executor.assign([self._assign(stage, placed) for stage, placed in enumerate(stages)])
            try:
                infos = await self._try(stages)
            except (NodeRefused, LoadingHung, DifferentWeights, LinkFailed) as error:
                self._note_fault(describe_fault(error))
                self._planning.note_fault(error)
                self._go_back(stages)
                continue
            except EngineFailed:
                raise
            except ParallaxError as error:
                await backoff.wait(f"the pipeline cannot be built: {error.message}")
                continue
            if infos is not None:
                self._opened, self.fault = stages, ""
                self.note_opened(stages)
                return infos

    def _go_back(self, stages: Stages) -> None:
        """Return to the stages that were open last, or wait for a plan, since these cannot be opened."""
        if self._planned == stages:
            before, self._planned = self._opened, ()
            if before and before != stages and self._planning.can_serve(before):
                logger.warning("pipeline goes back to %s", describe_places(before))
                self._planned = before

    async def _await_plan(self) -> Stages:
        if not self._planned:
            self._executor.assign(())  # others can hear what the nodes say meanwhile
        await self._await_move(())
        return self._planned

    async def _await_move(self, stages: Stages) -> None:
        """Wait until other stages than these are planned."""
        while self._planned == stages:
            await self._await_news()

    async def _await_news(self) -> None:
        """Wait for something new.

        Raises:
            EngineFailed: if the pipeline is to end.
        """
        self._news.clear()
        if not self._end:
            await self._news.wait()
        if self._end:
            raise EngineFailed(self._end)

    async def _try(self, stages: Stages) -> tuple[StageInfo, ...] | None:
        """Open the stages; None if the plan changes meanwhile."""
        opening = asyncio.create_task(self._executor.open())
        try:
            while not opening.done() and self._planned == stages:
                self._news.clear()
                hearing = asyncio.create_task(self._news.wait())
                try:
                    await asyncio.wait([opening, hearing], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    hearing.cancel()
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
        return None if opening.cancelled() else opening.result()

    async def abandon(self, stage: int) -> None:
        """Give up a stage with a hung step or a leaving node, and plan without the node."""
        node = self._executor.locations()[stage].node
        await self._executor.abandon(stage)
        self._planning.note_fault(NodeRefused(node, "its stage was given up"))

    async def replace(self, stage: int) -> bool:
        """Place the model without a leaving node; see `Executor.replace`."""
        await self._planning.replace(self._executor.locations()[stage].node)
        return True

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage ended, and why; see `Executor.explain`."""
        return await self._executor.explain(loss)

    async def close(self) -> None:
        """Give all nodes back, with what they have loaded. Idempotent."""
        self._planned = ()
        self._executor.assign(())
        await self._executor.close()

    def needs(self) -> str:
        """Return what the pipeline waits for."""
        if not self._planned:
            return self._planning.explain()
        return self.fault or f"loading {describe_places(self._planned)}"

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs."""
        return self._executor.locations()

    def _note_fault(self, reason: str) -> None:
        self.fault = reason


def describe_fault(error: PlanFault) -> str:
    """Return a fault with its hint."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def describe_places(stages: Sequence[PlacedStage]) -> str:
    """Return the layers of each node in words, such as ``layers 0-10 on a/1, 10-30 on b/1``."""
    return "layers " + ", ".join(f"{each.layers.start}-{each.layers.stop} on {each.node}" for each in stages)
