"""Runs the stages of a pipeline in other processes, on this machine or on others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from parallax_core.base.errors import BackendFailed, ParallaxError, PeerLost, StageLost
from parallax_core.base.ids import Epoch
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.contracts.progress import Progress, Unit, silent
from parallax_core.contracts.stage import LayerRange, StageInfo
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import StageLocation
from parallax_core.node.executor.compatibility import check_stages
from parallax_core.node.executor.loss import LossFinder
from parallax_core.node.executor.unassigned import describe_unassigned, reminding
from parallax_core.node.executor.weights_check import DifferentWeights, WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.launch import LOG_HINT, WorkerEnded
from parallax_core.node.membership.loading import LinkFailed, LoadingHung, check_weights, load_stage, receive_reply
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.wire.membership import Hop, Join, Linked, Refusal, Release

logger = logging.getLogger(__name__)

MOST_TRIALS = 3
"""Load attempts per worker: on a busy machine, a slow first import can miss heartbeats."""
LEAVE_S = 1.0
"""Seconds that releasing a node may take."""


class RemoteExecutor:
    """An `Executor` that assigns each stage to a node that has joined, and links the nodes to their neighbours.

    After a loss, the remaining nodes keep their weights. A lost node is replaced by a spare one, by a new process if
    this process started it, or else by the next node that joins. A node that leaves is replaced while it still runs.
    """

    most_failures: int | None = None

    def __init__(
        self,
        assignments: Sequence[StageAssignment],
        supply: NodeSupply,
        progress: Progress = silent,
        weights: WeightsCheck | None = None,
    ) -> None:
        """Give ``assignments`` to nodes of ``supply``, whose weights must pass ``weights``."""
        self._assignments = list(assignments)
        self._supply = supply
        self._supervisor = supply.supervisor
        self._progress = progress
        self._weights = weights or WeightsCheck()
        self._nodes: list[JoinedNode | None] = [None] * len(assignments)
        self._holders: list[tuple[str, int]] = [("", 0)] * len(assignments)
        """The node's name and process id that last served each stage."""
        self._restarts = [0] * len(assignments)
        self._successors: dict[int, JoinedNode] = {}
        """By stage: the node that takes over from one that leaves, from the next `open` on."""
        self._dismissals: set[asyncio.Task[None]] = set()
        self._unassigned: set[int] = set()
        """The stages that wait for an operator to start a node."""
        self._attempt = Epoch(0)
        """Sent with every message before the first step, to tell replies to an earlier attempt apart."""
        self.channels: tuple[Channel, ...] = ()

    async def open(self) -> tuple[StageInfo, ...]:
        """Find a node for every stage, load it and link it, and keep spares for the stages; see `Executor.open`.

        Raises:
            ParallaxError: if a node cannot load its stage, or stages do not fit each other; it names the stage.
        """
        infos = await self.assemble()
        if self._supply.spares is not None:
            sizes = {each: info.weight_bytes for each, info in zip(self._assignments, infos, strict=True)}
            self._supply.spares.cover(self, sizes)
        return infos

    async def assemble(self) -> tuple[StageInfo, ...]:
        """Open the stages, as `open` does, without spares."""
        self._install_successors()
        self._attempt = Epoch(next(self._supply.registry.attempts))
        self._weights.begin()
        for channel in self.channels:
            channel.unwatch()  # loading may keep a node's threads from running
        async with reminding(self.needs), FailFastGroup() as group:
            filling = [group.start(self._fill(stage)) for stage in range(len(self._assignments))]
        infos = tuple(task.result() for task in filling)
        for assignment, info in zip(self._assignments, infos, strict=True):
            await self._compare(assignment, info)
        check_stages(infos)
        self._count_restarts()
        async with FailFastGroup() as group:
            for assignment in self._assignments:
                group.start(self._link(assignment))
        self.channels = tuple(self._get_node(assignment).channel for assignment in self._assignments)
        for assignment, channel in zip(self._assignments, self.channels, strict=True):
            channel.watch(max(assignment.min_timeout_s, self._get_node(assignment).patience_s))
        return infos

    async def gather(self) -> None:
        """Find a node for every stage before any of them loads.

        Raises:
            ParallaxError: if a worker process cannot be started.
        """
        self._install_successors()
        async with reminding(self.needs), FailFastGroup() as group:
            for stage, node in enumerate(self._nodes):
                if node is None:
                    group.start(self._find(stage))

    async def close(self) -> None:
        """Release all nodes and end the worker processes that this one started."""
        self._install_successors()
        nodes, self._nodes = self._nodes, [None] * len(self._assignments)
        await asyncio.gather(*self._dismissals, *map(self._dismiss, self._assignments, nodes))

    async def replace(self, stage: int) -> bool:
        """Load a stage of a leaving node on another one; see `Executor.replace`.

        Raises:
            ParallaxError: if the other node cannot load it.
        """
        assignment = self._assignments[stage]
        node = await self._supply.find_successor(assignment)
        if node is None:
            return False
        self._successors[stage] = node
        try:
            info = await load_stage(node, assignment, self._attempt, silent)
            await check_weights(node, assignment, info, self._attempt, self._weights)
        except ParallaxError:
            del self._successors[stage]
            await self._dismiss(replace(assignment, node=node.name), node)
            raise
        return True

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage ended, and why, if that can be found; see `Executor.explain`."""
        nodes = [self._get_node(assignment) for assignment in self._assignments]
        return await LossFinder(self._assignments, nodes, self._supervisor).explain(loss)

    async def abandon(self, stage: int) -> None:
        """Release the node of a stage; if this process started it, kill it, so that its memory is free again."""
        assignment, node = self._assignments[stage], self._nodes[stage]
        self._nodes[stage] = None
        if self._supervisor is not None:
            await self._supervisor.kill(assignment.node)
        if node is not None:
            await node.channel.leave()

    @property
    def layers(self) -> tuple[LayerRange | None, ...]:
        """The layers assigned to each stage; None: the whole model."""
        return tuple(assignment.layers for assignment in self._assignments)

    def joins(self) -> tuple[Join, ...]:
        """Return the `Join` message of each stage's node; call it after `gather`."""
        return tuple(self._get_node(assignment).join for assignment in self._assignments)

    def give(self, layers: Sequence[LayerRange]) -> None:
        """Assign other layers to the stages, from the next `open` on."""
        pairs = zip(self._assignments, layers, strict=True)
        self._assignments = [replace(assignment, layers=each) for assignment, each in pairs]

    def assign(self, assignments: Sequence[StageAssignment]) -> None:
        """Take other stages, each of which names its node, from the next `open` on; not while stages open.

        Nodes that are named again keep what they have loaded. The others go back to the registry, and keep it, too.
        """
        leased = {assignment.node for assignment in self._assignments if assignment.lease is not None}
        for channel in self.channels:
            channel.unwatch()  # also those of nodes that stay: they load next
        held = {node.name: node for node in self._nodes if node is not None and not node.channel.ended.is_set()}
        self._assignments = list(assignments)
        self._nodes = [held.pop(assignment.node, None) for assignment in assignments]
        self._holders = [("", 0)] * len(assignments)
        self._restarts = [0] * len(assignments)
        self.channels = ()
        for node in held.values():
            self._supply.registry.give_back(node, is_shared=node.name in leased)

    def needs(self) -> str:
        """Return which stages wait for a node to be started by hand; see `Executor.needs`."""
        unassigned = [assignment for assignment in self._assignments if assignment.stage in self._unassigned]
        return describe_unassigned(unassigned, len(self._assignments), self._supply.registry)

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs; see `Executor.locations`."""
        return tuple(self._describe(assignment) for assignment in self._assignments)

    def _describe(self, assignment: StageAssignment) -> StageLocation:
        node, restarts = self._nodes[assignment.stage], self._restarts[assignment.stage]
        if node is None:
            return StageLocation(node=assignment.node, backend=assignment.backend, restarts=restarts)
        join = node.join
        backend = assignment.backend or next(iter(join.backends), "")
        where = StageLocation(node=node.name, backend=backend, host=join.host, pid=join.pid, restarts=restarts)
        return replace(where, relay=node.relay)

    def _count_restarts(self) -> None:
        """Count a restart for each stage whose process changed; a node lost while it loads never had the stage."""
        for assignment in self._assignments:
            holder = (self._get_node(assignment).name, self._get_node(assignment).join.pid)
            self._restarts[assignment.stage] += self._holders[assignment.stage] not in {("", 0), holder}
            self._holders[assignment.stage] = holder

    def _install_successors(self) -> None:
        """Give the stages of nodes that leave to their successors, and release the nodes that leave."""
        for stage, successor in self._successors.items():
            assignment, node = self._assignments[stage], self._nodes[stage]
            self._nodes[stage] = successor
            if self._supervisor is not None:
                self._assignments[stage] = replace(assignment, node=successor.name)
            dismissal = asyncio.create_task(self._dismiss(assignment, node))
            self._dismissals.add(dismissal)
            dismissal.add_done_callback(self._dismissals.discard)
        self._successors.clear()

    async def _dismiss(self, assignment: StageAssignment, node: JoinedNode | None) -> None:
        if self._supervisor is not None:
            await self._supervisor.end(assignment.node)
        if node is not None:
            with contextlib.suppress(PeerLost, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await node.channel.send(Release(self._attempt))
                    await node.channel.leave()

    def _get_node(self, assignment: StageAssignment) -> JoinedNode:
        node = self._nodes[assignment.stage]
        assert node is not None, "the stage has a node"
        return node

    async def _fill(self, stage: int) -> StageInfo:
        """Load the stage on its node, or on another if that one is gone."""
        if (node := self._nodes[stage]) is not None:
            try:
                return await self._load(stage, node)
            except PeerLost as error:
                logger.info("node is replaced node=%s: %s", node.name, error.message)
                await node.channel.leave()
                self._nodes[stage] = None
        for trial in count(1):
            node = await self._find(stage)
            try:
                return await self._load(stage, node)
            except PeerLost as error:
                self._nodes[stage] = None
                assignment = self._assignments[stage]
                if self._supervisor is not None:
                    end = await self._supervisor.explain(assignment.node)
                    if end is not None or trial == MOST_TRIALS:
                        raise self._lost(assignment, end or error.message) from error
                logger.warning("node is gone node=%s: %s", node.name, error.message)
        raise AssertionError("the loop ends with a result or an error")

    async def _find(self, stage: int) -> JoinedNode:
        """Find a node for the stage, and note it."""
        assignment = self._assignments[stage]
        self._unassigned.update({stage} if self._supervisor is None and not assignment.node else ())
        try:
            node = await self._supply.find(assignment)
        except WorkerEnded as error:
            raise self._lost(assignment, error.message) from error
        finally:
            self._unassigned.discard(stage)
        self._nodes[stage] = node
        if self._supervisor is not None:
            self._assignments[stage] = replace(assignment, node=node.name)
        return node

    async def _load(self, stage: int, node: JoinedNode) -> StageInfo:
        def show(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
            self._progress(task if len(self._assignments) == 1 else f"stage {stage}: {task}", done, total, unit)

        try:
            return await load_stage(node, self._assignments[stage], self._attempt, show)
        except PeerLost:
            raise
        except ParallaxError as error:
            if self._supervisor is not None or isinstance(error, LoadingHung):
                await self.abandon(stage)  # a new process may have the memory that this one cannot give back
            raise

    async def _compare(self, assignment: StageAssignment, info: StageInfo) -> None:
        node = self._get_node(assignment)
        try:
            await check_weights(node, assignment, info, self._attempt, self._weights)
        except DifferentWeights:
            self._nodes[assignment.stage] = None
            raise

    async def _link(self, assignment: StageAssignment) -> None:
        node = self._get_node(assignment)
        before = self._neighbour(assignment.stage - 1)
        after = self._neighbour(assignment.stage + 1)
        names = (before.name if before else "", after.name if after else "", after.join.address if after else "")
        keys = (before.channel.key if before else b"", after.channel.key if after else b"")
        try:
            await node.channel.send(Hop(self._attempt, assignment.stage, *names, *keys))
            while True:
                match await receive_reply(node, assignment, self._attempt):
                    case Linked(relay=relay):
                        node.relay = relay
                        return
                    case Refusal() as refusal:
                        raise LinkFailed.find(node, before, after, refusal)
        except PeerLost as error:
            raise self._lost(assignment, error.message) from error

    def _neighbour(self, stage: int) -> JoinedNode | None:
        return self._nodes[stage] if 0 <= stage < len(self._nodes) else None

    def _lost(self, assignment: StageAssignment, reason: str) -> BackendFailed:
        name = f"stage {assignment.stage} of {len(self._assignments)}"
        return BackendFailed(f"{name}{f' on node {assignment.node!r}' if assignment.node else ''}: {reason}", LOG_HINT)
