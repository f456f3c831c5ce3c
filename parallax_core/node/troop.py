"""The stages of a pipeline that work in other processes, here or on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from parallax_core.base.errors import BackendFailed, ParallaxError, PeerLost, StageLost
from parallax_core.base.ids import Epoch
from parallax_core.contracts.backend import DType
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.stage import LayerRange, StageInfo
from parallax_core.node.chain import check_chain
from parallax_core.node.channel import Channel
from parallax_core.node.company import LEASE, Post
from parallax_core.node.muster import Muster, Recruit
from parallax_core.node.nursery import Nursery
from parallax_core.node.together import Together
from parallax_core.wire.membership import Assign, Hop, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import Failure, Heartbeat, Result

logger = logging.getLogger(__name__)

LOG_HINT = "its log, above, says why"
JOIN_S = 120.0
"""How long a process of ours may take to join."""
TELL_S = 0.1
"""How long to listen for who it was that was lost."""
LEAVE_S = 1.0
"""How long a node may take to be let go of."""

Sign = Loading | Ready | Refusal | Linked
"""What a node says while it becomes a stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What a node is to be."""

    stage: int
    layers: LayerRange | None
    """None: the whole model."""
    model: str
    """As a user writes it."""
    backend: str = ""
    dtype: DType = "auto"
    device: str = ""
    memory_fraction: float = 0.5
    heartbeat_s: float = 1.0
    node: str = ""
    """The node that is to have it; empty: any that can."""

    def assign(self, attempt: Epoch) -> Assign:
        """Return how it is said in the course of an attempt."""
        layers = self.layers or LayerRange(0, 0)
        return Assign(
            LEASE,
            attempt,
            stage=self.stage,
            backend=self.backend,
            model=self.model,
            start=layers.start,
            stop=layers.stop,
            dtype=self.dtype,
            device=self.device,
            memory_fraction=self.memory_fraction,
            heartbeat_s=self.heartbeat_s,
        )

    def fit(self, recruit: Recruit) -> int:
        """Return how well a node would do: 0, not at all; 2, it has just that loaded."""
        join, layers = recruit.join, self.layers or LayerRange(0, 0)
        if self.node:  # whatever it has: what it lacks it will say itself
            return int(recruit.name == self.node)
        if self.backend and self.backend not in join.backends:
            return 0
        return 2 if (join.model, join.start, join.stop) == (self.model, layers.start, layers.stop) else 1


class Troop:
    """A `Company` of nodes that have joined: each is given a stage, and links to its neighbours.

    After a loss the nodes that are left keep their weights; those that are gone are replaced by new processes where
    they were ours, and by the next that join where not.
    """

    heals = True

    def __init__(
        self, roles: Sequence[Role], muster: Muster, nursery: Nursery | None = None, progress: Progress = silent
    ) -> None:
        """Fill ``roles`` with nodes of ``muster``; ``nursery`` starts those that are processes of ours."""
        self._roles = tuple(roles)
        self._muster = muster
        self._nursery = nursery
        self._progress = progress
        self._recruits: list[Recruit | None] = [None] * len(roles)
        self._restarts = [-1] * len(roles)
        self._attempt = Epoch(0)
        """Told with all that is said until steps come, so that what belongs to an earlier attempt is known as such."""
        self.channels: tuple[Channel, ...] = ()

    async def open(self) -> tuple[StageInfo, ...]:
        """Have every role filled, loaded and linked; see `Company.open`.

        Raises:
            ParallaxError: naming the stage, if a node cannot be one, or they do not fit each other.
        """
        self._attempt = Epoch(self._attempt + 1)
        async with Together() as group:
            filling = [group.start(self._fill(role)) for role in self._roles]
        infos = tuple(task.result() for task in filling)
        check_chain(infos)
        async with Together() as group:
            for role in self._roles:
                group.start(self._link(role))
        self.channels = tuple(self._at(role).channel for role in self._roles)
        return infos

    async def close(self) -> None:
        """Let go of all nodes; processes of ours end."""
        recruits, self._recruits = self._recruits, [None] * len(self._roles)
        await asyncio.gather(*map(self._dismiss, self._roles, recruits))

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage has ended, and how, where that can be told; see `Company.explain`."""
        if loss.__cause__ is not None and loss.__cause__.__cause__ is not None:
            return loss  # what came from there could not be read: that says it all
        said: list[str] = []
        listening = [asyncio.create_task(self._await_end(role, said)) for role in self._roles]
        ending = [asyncio.create_task(self._await_process(role)) for role in self._roles] if self._nursery else []
        done, _ = await asyncio.wait(ending or listening, timeout=TELL_S, return_when=asyncio.FIRST_COMPLETED)
        for task in (*listening, *ending):
            task.cancel()
        await asyncio.gather(*listening, *ending, return_exceptions=True)
        names = [task.result() for task in done]
        if not names and (others := [each for each in said if each not in loss.message]):
            names = ["; ".join((loss.message, *others))]
        return StageLost(names[0], loss.hint) if names else loss

    def give(self, layers: Sequence[LayerRange]) -> None:
        """Have the stages be given other layers, from the next `open` on."""
        self._roles = tuple(replace(role, layers=each) for role, each in zip(self._roles, layers, strict=True))

    def posts(self) -> tuple[Post, ...]:
        """Return where each stage runs; see `Company.posts`."""
        return tuple(self._describe(role) for role in self._roles)

    def _describe(self, role: Role) -> Post:
        recruit, restarts = self._recruits[role.stage], max(0, self._restarts[role.stage])
        if recruit is None:
            return Post(node=role.node, backend=role.backend, restarts=restarts)
        join = recruit.join
        backend = role.backend or next(iter(join.backends), "")
        return Post(node=recruit.name, backend=backend, host=join.host, pid=join.pid, restarts=restarts)

    async def _dismiss(self, role: Role, recruit: Recruit | None) -> None:
        if self._nursery is not None:
            await self._nursery.end(role.node)
        if recruit is not None:
            with contextlib.suppress(PeerLost, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await recruit.channel.send(Release(LEASE, self._attempt))
                    await recruit.channel.leave()

    async def _await_end(self, role: Role, said: list[str]) -> str:
        """Wait until the node of a stage is gone, and return how; note what it says of losses until then."""
        recruit = self._at(role)
        try:
            while True:
                message = await recruit.channel.receive()
                if isinstance(message, Failure) and message.lost:
                    said.append(message.message)
        except PeerLost as error:
            return self._name_loss(role, error.message)

    async def _await_process(self, role: Role) -> str:
        """Wait until a process of ours has ended, and return how."""
        assert self._nursery is not None, "it is ours"
        return self._name_loss(role, await self._nursery.wait_end(role.node))

    def _name_loss(self, role: Role, reason: str) -> str:
        return f"stage {role.stage} of {len(self._roles)}, on node {self._at(role).name!r}, is lost: {reason}"

    def _at(self, role: Role) -> Recruit:
        recruit = self._recruits[role.stage]
        assert recruit is not None, "the role is filled"
        return recruit

    async def _fill(self, role: Role) -> StageInfo:
        """Have a node load the stage: the one that has it, or another if that is gone."""
        if (recruit := self._recruits[role.stage]) is not None:
            try:
                return await self._load(role, recruit)
            except PeerLost as error:
                logger.info("node is replaced node=%s: %s", recruit.name, error.message)
                await recruit.channel.leave()
                self._recruits[role.stage] = None
        while True:
            self._recruits[role.stage] = recruit = await self._find(role)
            try:
                return await self._load(role, recruit)
            except PeerLost as error:
                self._recruits[role.stage] = None
                if self._nursery is not None:
                    raise self._lost(role, await self._nursery.explain(role.node) or error.message) from error
                logger.warning("node is gone node=%s: %s", recruit.name, error.message)

    async def _find(self, role: Role) -> Recruit:
        self._restarts[role.stage] += 1
        if self._nursery is None:
            logger.info("stage %d waits for a node to join", role.stage)
            return await self._muster.find(role.fit)
        self._muster.forget(role.node)
        await self._nursery.restart(role.node)
        finding = asyncio.create_task(self._muster.find(role.fit))
        ending = asyncio.create_task(self._nursery.wait_end(role.node))
        try:
            await asyncio.wait([finding, ending], timeout=JOIN_S, return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                return finding.result()
            reason = ending.result() if ending.done() else f"its process has not joined within {JOIN_S:g} s"
            raise self._lost(role, reason)
        finally:
            finding.cancel()
            ending.cancel()

    async def _load(self, role: Role, recruit: Recruit) -> StageInfo:
        await recruit.channel.send(role.assign(self._attempt))
        while True:
            match await self._hear(role, recruit):
                case Loading(_, _, stage, task, done, total, unit):
                    name = task if len(self._roles) == 1 else f"stage {stage}: {task}"
                    self._progress(name, done, None if total < 0 else total, unit)
                case Ready(_, _, _, info):
                    return info
                case Refusal(_, _, stage, message, hint):
                    raise ParallaxError(f"stage {stage} on node {recruit.name!r}: {message}", hint)

    async def _link(self, role: Role) -> None:
        recruit = self._at(role)
        before = self._neighbour(role.stage - 1)
        after = self._neighbour(role.stage + 1)
        names = (before.name if before else "", after.name if after else "", after.join.address if after else "")
        try:
            await recruit.channel.send(Hop(LEASE, self._attempt, role.stage, *names))
            while True:
                match await self._hear(role, recruit):
                    case Linked():
                        return
                    case Refusal(_, _, _, message, hint):
                        raise ParallaxError(message, hint)
        except PeerLost as error:
            raise self._lost(role, error.message) from error

    async def _hear(self, role: Role, recruit: Recruit) -> Sign:
        """Return the next message of this attempt.

        Raises:
            PeerLost: if there is none, or none that belongs here.
        """
        while True:
            message = await recruit.channel.receive()
            if isinstance(message, Sign):
                if (message.lease, message.epoch, message.stage) == (LEASE, self._attempt, role.stage):
                    return message
            elif not isinstance(message, Result | Failure | Heartbeat):
                await recruit.channel.leave()
                raise PeerLost(f"node {recruit.name!r} sent a {type(message).__name__} that means nothing here")

    def _neighbour(self, stage: int) -> Recruit | None:
        return self._recruits[stage] if 0 <= stage < len(self._recruits) else None

    def _lost(self, role: Role, reason: str) -> BackendFailed:
        name = f"stage {role.stage} of {len(self._roles)}"
        return BackendFailed(f"{name}{f' on node {role.node!r}' if role.node else ''}: {reason}", LOG_HINT)
