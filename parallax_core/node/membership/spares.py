"""Keeps spare nodes with the layers of a stage loaded, to replace lost or leaving ones."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch
from parallax_core.cluster.placement.spare_choice import choose_spare
from parallax_core.contracts.progress import silent
from parallax_core.node.backoff import Backoff
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.launch import find_worker
from parallax_core.node.membership.loading import check_weights, load_stage
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

ATTEMPT = Epoch(0)
"""The attempt in which spares are loaded; those of pipelines are counted from 1."""


@dataclass(slots=True, eq=False)
class Spare:
    """A spare node, or one that is being started or loaded."""

    assignment: StageAssignment
    """The stage whose layers it gets, and the name of its process, if this process starts it."""
    task: asyncio.Task[None] | None = None
    node: JoinedNode | None = None
    is_loaded: bool = False


class SparePool:
    """Keeps up to a number of nodes loaded with the layers of stages, shared by all replicas."""

    def __init__(
        self,
        size: int,
        registry: NodeRegistry,
        supervisor: WorkerSupervisor | None = None,
        weights: WeightsCheck | None = None,
    ) -> None:
        """Keep ``size`` spares: nodes of ``registry`` that no stage needs, or processes that ``supervisor`` starts.

        The weights of spares must pass ``weights``.
        """
        self._size = size
        self._registry = registry
        self._supervisor = supervisor
        self._weights = weights or WeightsCheck()
        self._stages: dict[Hashable, Mapping[StageAssignment, int]] = {}
        """By pipeline: its stages and their weights in bytes."""
        self._spares: list[Spare] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._serial = count()

    @property
    def spares(self) -> tuple[Spare, ...]:
        """The spares that are loaded, or being started or loaded."""
        return tuple(self._spares)

    def cover(self, pipeline: Hashable, stages: Mapping[StageAssignment, int]) -> None:
        """Keep spares for the stages of a pipeline, which has opened; the values are the bytes of their weights.

        A later call for the same pipeline replaces the earlier one.
        """
        self._stages[pipeline] = stages
        costs = self._find_costs()
        for spare in self.spares:
            if _find_kind(spare.assignment) not in costs:
                self._spares.remove(spare)
                self._end_later(spare)
        while len(self._spares) < self._size:
            kind = choose_spare(costs, Counter(_find_kind(spare.assignment) for spare in self._spares))
            self._start(kind)

    def take(self, assignment: StageAssignment) -> JoinedNode | None:
        """Return a spare node for a stage, or None.

        It has the layers loaded, or is loading them, or is a node that an operator started and that can load them.
        """
        kind = _find_kind(assignment)
        found = [spare for spare in self._spares if spare.node is not None and self._fits(kind, spare)]
        if not found:
            return None
        spare = max(found, key=lambda each: (_find_kind(each.assignment) == kind, each.is_loaded))
        self._spares.remove(spare)
        assert spare.node is not None, "it was asked for"
        assert spare.task is not None, "it has started"
        spare.task.cancel()
        logger.info("spare takes over a stage node=%s stage=%d", spare.node.name, assignment.stage)
        return spare.node

    async def stop(self) -> None:
        """Release all spares, and end those that this process started. Idempotent."""
        self._stages.clear()
        spares, self._spares = self._spares, []
        await asyncio.gather(*self._ending, *map(self._end, spares))

    def _find_costs(self) -> dict[StageAssignment, float]:
        """Return, for each kind of stage, the bytes of weights that its stages would have to load again."""
        costs: Counter[StageAssignment] = Counter()
        for stages in self._stages.values():
            for assignment, weight_bytes in stages.items():
                costs[_find_kind(assignment)] += max(1, weight_bytes)
        return dict(costs)

    def _fits(self, kind: StageAssignment, spare: Spare) -> bool:
        is_same = _find_kind(spare.assignment) == kind
        return is_same or (self._supervisor is None and spare.node is not None and kind.fit(spare.node) > 0)

    def _start(self, kind: StageAssignment) -> None:
        name = f"spare/{next(self._serial)}/{kind.stage}" if self._supervisor is not None else ""
        spare = Spare(replace(kind, node=name))
        spare.task = asyncio.create_task(self._keep(spare))
        self._spares.append(spare)

    async def _keep(self, spare: Spare) -> None:
        """Find a node, have it load, and watch it; find another one when it is lost."""
        backoff, reason = Backoff(lambda _: None), "a spare is to be loaded"
        while True:
            await backoff.wait(reason)
            try:
                spare.node = await self._find(spare.assignment)
                await self._load(spare.assignment, spare.node)
                spare.is_loaded = True
                logger.info("spare loaded node=%s stage=%d", spare.node.name, spare.assignment.stage)
                backoff.reset()
                reason = f"it sent a {type(await spare.node.channel.receive()).__name__} while it had nothing to do"
            except ParallaxError as error:
                reason = error.message
            except Exception as error:  # the next attempt may succeed, whatever the error is
                logger.exception("spare cannot be loaded")
                reason = f"{type(error).__name__}: {error}"
            logger.warning("spare is lost stage=%d: %s", spare.assignment.stage, reason)
            await self._release(spare)

    async def _find(self, assignment: StageAssignment) -> JoinedNode:
        if self._supervisor is not None:
            return await find_worker(self._registry, self._supervisor, assignment.node, assignment.fit)
        return await self._registry.find(lambda node: min(1, assignment.fit(node)))  # stages come first

    async def _load(self, assignment: StageAssignment, node: JoinedNode) -> None:
        info = await load_stage(node, assignment, ATTEMPT, silent)
        await check_weights(node, assignment, info, ATTEMPT, self._weights)

    async def _release(self, spare: Spare) -> None:
        node, spare.node, spare.is_loaded = spare.node, None, False
        if self._supervisor is not None:
            await self._supervisor.end(spare.assignment.node)
        if node is not None:
            await node.channel.leave()

    def _end_later(self, spare: Spare) -> None:
        task = asyncio.create_task(self._end(spare))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, spare: Spare) -> None:
        assert spare.task is not None, "it has started"
        spare.task.cancel()
        await asyncio.gather(spare.task, return_exceptions=True)
        await self._release(spare)


def _find_kind(assignment: StageAssignment) -> StageAssignment:
    """Return what a node that replaces another has to have loaded, whatever its name."""
    return replace(assignment, node="")
