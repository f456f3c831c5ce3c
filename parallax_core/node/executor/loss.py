"""Which stage of a pipeline was lost, and how, as far as its nodes tell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.base.errors import PeerLost, StageLost
from parallax_core.node.channel import CUT_OFF
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import JoinedNode
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.wire.messages import Failure

TELL_S = 0.1
"""How long to listen for who it was that was lost,"""
MISS_S = 1.0
"""and how long where one node has lost another: a head may miss that one a little later."""


@dataclass(frozen=True, slots=True)
class LossFinder:
    """The nodes of a pipeline that has lost a stage."""

    roles: Sequence[StageAssignment]
    nodes: Sequence[JoinedNode]
    """That of each role."""
    supervisor: WorkerSupervisor | None
    """None: none of them is a process of ours."""

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage has ended, and how, where that can be told; see `Executor.explain`."""
        if CUT_OFF in loss.message:
            return loss
        if loss.stage is not None:
            reason = loss.message.removeprefix(f"stage {loss.stage} of {len(self.roles)} is lost: ")
            return type(loss)(self._name_loss(loss.stage, reason), loss.hint, loss.stage)
        said: list[str] = []
        stages = range(len(self.roles))
        listening = [asyncio.create_task(self._await_end(stage, said)) for stage in stages]
        ending = [
            asyncio.create_task(self._await_process(stage, self.supervisor)) for stage in stages if self.supervisor
        ]
        names = await self._find_first(loss, ending, listening)
        for task in (*listening, *ending):
            task.cancel()
        await asyncio.gather(*listening, *ending, return_exceptions=True)
        names = [each for each in (*names, *said) if CUT_OFF in each] or names
        if not names and (others := [each for each in said if each not in loss.message]):
            names = ["; ".join((loss.message, *others))]
        return StageLost(names[0], loss.hint) if names else loss

    async def _find_first(
        self, loss: StageLost, ending: Sequence[asyncio.Task[str]], listening: Sequence[asyncio.Task[str]]
    ) -> list[str]:
        """Return how stages ended, if any does soon: a process of ours best knows itself, and then its link to us."""
        speaks_of = sum(repr(node.name) in loss.message for node in self.nodes)
        limit_s = MISS_S if speaks_of > 1 else TELL_S
        done, _ = await asyncio.wait([*ending, *listening], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if ending and done and done.isdisjoint(ending):
            await asyncio.wait(ending, timeout=TELL_S, return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in (*ending, *listening) if task.done()]

    async def _await_end(self, stage: int, said: list[str]) -> str:
        """Wait until the node of a stage is gone, and return how; note what it says of losses until then."""
        channel = self.nodes[stage].channel
        try:
            while True:
                message = await channel.receive()
                if isinstance(message, Failure) and message.lost:
                    said.append(message.message)
        except PeerLost as error:
            return self._name_loss(stage, error.message)

    async def _await_process(self, stage: int, supervisor: WorkerSupervisor) -> str:
        """Wait until a process of ours has ended, and return how."""
        return self._name_loss(stage, await supervisor.wait_end(self.roles[stage].node))

    def _name_loss(self, stage: int, reason: str) -> str:
        return f"stage {stage} of {len(self.roles)}, on node {self.nodes[stage].name!r}, is lost: {reason}"
