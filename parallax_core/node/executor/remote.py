"""The stages of a pipeline that work in other processes, here or on other machines."""

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
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.stage import LayerRange, StageInfo
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import LEASE, StageLocation
from parallax_core.node.executor.compatibility import check_stages
from parallax_core.node.executor.load_clock import LOADING_HINT
from parallax_core.node.executor.loss import LossFinder
from parallax_core.node.executor.unassigned import describe_unassigned, reminding
from parallax_core.node.executor.weights_check import DifferentWeights, WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import JoinedNode, NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.wire.membership import Hop, Join, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import Failure, Heartbeat, Result

logger = logging.getLogger(__name__)

LOG_HINT = "its log, above, says why"
JOIN_S = 120.0
"""How long a process of ours may take to join."""
MOST_TRIALS = 3
"""How often a process of ours may be lost that did not end while it loaded: what it imported may have kept all else in
it from running, on a busy machine, and comes faster the next time."""
LEAVE_S = 1.0
"""How long a node may take to be let go of."""

Sign = Loading | Ready | Refusal | Linked
"""What a node says while it becomes a stage."""


class RemoteExecutor:
    """An `Executor` of nodes that have joined: each is given a stage, and links to its neighbours.

    After a loss the nodes that are left keep their weights; those that are gone are replaced by new processes where
    they were ours, and by the next that join where not.
    """

    most_failures: int | None = None

    def __init__(
        self,
        roles: Sequence[StageAssignment],
        registry: NodeRegistry,
        supervisor: WorkerSupervisor | None = None,
        progress: Progress = silent,
        weights: WeightsCheck | None = None,
    ) -> None:
        """Fill ``roles`` with nodes of ``registry``, whose weights must pass ``weights``.

        ``supervisor`` starts the workers that this process runs itself.
        """
        self._roles = tuple(roles)
        self._registry = registry
        self._supervisor = supervisor
        self._progress = progress
        self._weights = weights or WeightsCheck()
        self._nodes: list[JoinedNode | None] = [None] * len(roles)
        self._holders: list[tuple[str, int]] = [("", 0)] * len(roles)
        """The node and the process that had each stage last, in working order."""
        self._restarts = [0] * len(roles)
        self._vacant: set[int] = set()
        """The stages that wait for somebody to start a node."""
        self._attempt = Epoch(0)
        """Told with all that is said until steps come, so that what belongs to an earlier attempt is known as such."""
        self.channels: tuple[Channel, ...] = ()

    async def open(self) -> tuple[StageInfo, ...]:
        """Have every role filled, loaded and linked; see `Executor.open`.

        Raises:
            ParallaxError: naming the stage, if a node cannot be one, or they do not fit each other.
        """
        self._attempt = Epoch(self._attempt + 1)
        self._weights.begin()
        async with reminding(self.needs), FailFastGroup() as group:
            filling = [group.start(self._fill(role)) for role in self._roles]
        infos = tuple(task.result() for task in filling)
        for role, info in zip(self._roles, infos, strict=True):
            await self._compare(role, info)
        check_stages(infos)
        self._count_restarts()
        async with FailFastGroup() as group:
            for role in self._roles:
                group.start(self._link(role))
        self.channels = tuple(self._at(role).channel for role in self._roles)
        return infos

    async def gather(self) -> None:
        """Have a node for every role before any of them loads.

        Raises:
            ParallaxError: if one cannot be started.
        """

        async def enlist(role: StageAssignment) -> None:
            self._nodes[role.stage] = await self._find(role)

        async with reminding(self.needs), FailFastGroup() as group:
            for role in self._roles:
                if self._nodes[role.stage] is None:
                    group.start(enlist(role))

    async def close(self) -> None:
        """Let go of all nodes; processes of ours end."""
        nodes, self._nodes = self._nodes, [None] * len(self._roles)
        await asyncio.gather(*map(self._dismiss, self._roles, nodes))

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage has ended, and how, where that can be told; see `Executor.explain`."""
        nodes = [self._at(role) for role in self._roles]
        return await LossFinder(self._roles, nodes, self._supervisor).explain(loss)

    async def abandon(self, stage: int) -> None:
        """Let go of the node of a stage; a process of ours is killed, so that all it holds is free again."""
        role, node = self._roles[stage], self._nodes[stage]
        self._nodes[stage] = None
        if self._supervisor is not None:
            await self._supervisor.kill(role.node)
        if node is not None:
            await node.channel.leave()

    @property
    def layers(self) -> tuple[LayerRange | None, ...]:
        """What each stage has, or is to have."""
        return tuple(role.layers for role in self._roles)

    def joins(self) -> tuple[Join, ...]:
        """Return what the node of each stage said when it joined, once they are gathered."""
        return tuple(self._at(role).join for role in self._roles)

    def give(self, layers: Sequence[LayerRange]) -> None:
        """Have the stages be given other layers, from the next `open` on."""
        self._roles = tuple(replace(role, layers=each) for role, each in zip(self._roles, layers, strict=True))

    def needs(self) -> str:
        """Return which stages wait for a node to be started by hand; see `Executor.needs`."""
        vacant = [role for role in self._roles if role.stage in self._vacant]
        return describe_unassigned(vacant, len(self._roles), self._registry)

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs; see `Executor.posts`."""
        return tuple(self._describe(role) for role in self._roles)

    def _describe(self, role: StageAssignment) -> StageLocation:
        node, restarts = self._nodes[role.stage], self._restarts[role.stage]
        if node is None:
            return StageLocation(node=role.node, backend=role.backend, restarts=restarts)
        join = node.join
        backend = role.backend or next(iter(join.backends), "")
        return StageLocation(node=node.name, backend=backend, host=join.host, pid=join.pid, restarts=restarts)

    def _count_restarts(self) -> None:
        """Note who has each stage now, where it works: what is lost while it loads never had it."""
        for role in self._roles:
            holder = (self._at(role).name, self._at(role).join.pid)
            self._restarts[role.stage] += self._holders[role.stage] not in {("", 0), holder}
            self._holders[role.stage] = holder

    async def _dismiss(self, role: StageAssignment, node: JoinedNode | None) -> None:
        if self._supervisor is not None:
            await self._supervisor.end(role.node)
        if node is not None:
            with contextlib.suppress(PeerLost, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await node.channel.send(Release(LEASE, self._attempt))
                    await node.channel.leave()

    def _at(self, role: StageAssignment) -> JoinedNode:
        node = self._nodes[role.stage]
        assert node is not None, "the role is filled"
        return node

    async def _fill(self, role: StageAssignment) -> StageInfo:
        """Have a node load the stage: the one that has it, or another if that is gone."""
        if (node := self._nodes[role.stage]) is not None:
            try:
                return await self._load(role, node)
            except PeerLost as error:
                logger.info("node is replaced node=%s: %s", node.name, error.message)
                await node.channel.leave()
                self._nodes[role.stage] = None
        for trial in count(1):
            self._nodes[role.stage] = node = await self._find(role)
            try:
                return await self._load(role, node)
            except PeerLost as error:
                self._nodes[role.stage] = None
                if self._supervisor is not None:
                    end = await self._supervisor.explain(role.node)
                    if end is not None or trial == MOST_TRIALS:
                        raise self._lost(role, end or error.message) from error
                logger.warning("node is gone node=%s: %s", node.name, error.message)
        raise AssertionError("it is tried until it is so, or an error")

    async def _find(self, role: StageAssignment) -> JoinedNode:
        if self._supervisor is None:
            self._vacant.add(role.stage)
            try:
                return await self._registry.find(role.fit)
            finally:
                self._vacant.discard(role.stage)
        self._registry.forget(role.node)
        await self._supervisor.restart(role.node)
        finding = asyncio.create_task(self._registry.find(role.fit))
        ending = asyncio.create_task(self._supervisor.wait_end(role.node))
        try:
            await asyncio.wait([finding, ending], timeout=JOIN_S, return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                return finding.result()
            reason = ending.result() if ending.done() else f"its process has not joined within {JOIN_S:g} s"
            raise self._lost(role, reason)
        finally:
            finding.cancel()
            ending.cancel()

    async def _load(self, role: StageAssignment, node: JoinedNode) -> StageInfo:
        await node.channel.send(role.assign(self._attempt))
        while True:
            match await self._hear_loading(role, node):
                case Loading(_, _, stage, task, done, total, unit):
                    name = task if len(self._roles) == 1 else f"stage {stage}: {task}"
                    self._progress(name, done, None if total < 0 else total, unit)
                case Ready(_, _, _, info):
                    return info
                case Refusal(_, _, stage, message, hint):
                    if self._supervisor is not None:  # a new process may have the memory that this one cannot give back
                        await self.abandon(stage)
                    raise ParallaxError(f"stage {stage} on node {node.name!r}: {message}", hint)

    async def _compare(self, role: StageAssignment, info: StageInfo) -> None:
        """Compare the weights of a stage with the others'; a node that has others may go and come back with these."""
        node = self._at(role)
        try:
            await self._weights.check(f"stage {role.stage} on node {node.name!r}", info.weights_parts)
        except DifferentWeights as error:
            self._nodes[role.stage] = None
            with contextlib.suppress(PeerLost):
                await node.channel.send(Refusal(LEASE, self._attempt, role.stage, error.message, error.hint))
                await node.channel.leave()
            raise

    async def _hear_loading(self, role: StageAssignment, node: JoinedNode) -> Sign:
        """Return what a node that loads says next.

        Raises:
            BackendFailed: if it says nothing for too long.
        """
        try:
            async with asyncio.timeout(role.load_timeout_s):
                return await self._hear(role, node)
        except TimeoutError as error:
            await self.abandon(role.stage)
            message = f"it has not said for {role.load_timeout_s:g} s how far loading is"
            raise BackendFailed(f"stage {role.stage} on node {node.name!r}: {message}", LOADING_HINT) from error

    async def _link(self, role: StageAssignment) -> None:
        node = self._at(role)
        before = self._neighbour(role.stage - 1)
        after = self._neighbour(role.stage + 1)
        names = (before.name if before else "", after.name if after else "", after.join.address if after else "")
        try:
            await node.channel.send(Hop(LEASE, self._attempt, role.stage, *names))
            while True:
                match await self._hear(role, node):
                    case Linked():
                        return
                    case Refusal(_, _, _, message, hint):
                        raise ParallaxError(message, hint)
        except PeerLost as error:
            raise self._lost(role, error.message) from error

    async def _hear(self, role: StageAssignment, node: JoinedNode) -> Sign:
        """Return the next message of this attempt.

        Raises:
            PeerLost: if there is none, or none that belongs here.
        """
        while True:
            message = await node.channel.receive()
            if isinstance(message, Sign):
                if (message.lease, message.epoch, message.stage) == (LEASE, self._attempt, role.stage):
                    return message
            elif not isinstance(message, Result | Failure | Heartbeat):
                await node.channel.leave()
                raise PeerLost(f"node {node.name!r} sent a {type(message).__name__} that means nothing here")

    def _neighbour(self, stage: int) -> JoinedNode | None:
        return self._nodes[stage] if 0 <= stage < len(self._nodes) else None

    def _lost(self, role: StageAssignment, reason: str) -> BackendFailed:
        name = f"stage {role.stage} of {len(self._roles)}"
        return BackendFailed(f"{name}{f' on node {role.node!r}' if role.node else ''}: {reason}", LOG_HINT)
