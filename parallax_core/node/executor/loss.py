"""Finds the lost stage of a pipeline, and the reason, from the reports of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.base.errors import LossCause, PeerLost, StageLost
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.wire.messages import Failure

TELL_S = 0.1
"""Seconds to wait for the root cause of a loss."""
MISS_S = 1.0
"""The same if a node reports that its neighbour is gone: the head may notice that one a little later."""


@dataclass(frozen=True, slots=True)
class LossFinder:
    """The nodes of a pipeline that has lost a stage."""

    assignments: Sequence[StageAssignment]
    nodes: Sequence[JoinedNode]
    """The node of each stage."""
    supervisor: WorkerSupervisor | None
    """The supervisor of the nodes' processes; None if an operator started them."""

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage ended, and why, if that can be found; see `Executor.explain`."""
        if loss.cause == "invalid_frame":
            return loss
        if loss.stage is not None:
            return type(loss)(self._describe(loss.stage, loss.reason), loss.hint, loss.stage, cause=loss.cause)
        reported: list[Failure] = []
        stages = range(len(self.assignments))
        listening = [asyncio.create_task(self._await_end(stage, reported)) for stage in stages]
        ending = [
            asyncio.create_task(self._await_process(stage, self.supervisor)) for stage in stages if self.supervisor
        ]
        found = await self._find_first(loss, ending, listening)
        for task in (*listening, *ending):
            task.cancel()
        await asyncio.gather(*listening, *ending, return_exceptions=True)
        return _choose(loss, found, reported)

    async def _find_first(
        self, loss: StageLost, ending: Sequence[asyncio.Task[StageLost]], listening: Sequence[asyncio.Task[StageLost]]
    ) -> list[StageLost]:
        """Return why stages ended, if any ends soon; the exit of a supervised process says more than its link."""
        is_second_hand = loss.peer in {node.name for node in self.nodes}
        limit_s = MISS_S if is_second_hand else TELL_S
        done, _ = await asyncio.wait([*ending, *listening], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if ending and done and done.isdisjoint(ending):
            await asyncio.wait(ending, timeout=TELL_S, return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in (*ending, *listening) if task.done()]

    async def _await_end(self, stage: int, reported: list[Failure]) -> StageLost:
        """Wait until the node of a stage is gone and return why; collect the losses it reports until then."""
        channel = self.nodes[stage].channel
        try:
            while True:
                message = await channel.receive()
                if isinstance(message, Failure) and message.lost:
                    reported.append(message)
        except PeerLost as error:
            return self._make_loss(stage, error.message, error.cause)

    async def _await_process(self, stage: int, supervisor: WorkerSupervisor) -> StageLost:
        """Wait until the supervised process of a stage has ended, and return why."""
        return self._make_loss(stage, await supervisor.wait_end(self.assignments[stage].node), "unknown")

    def _make_loss(self, stage: int, reason: str, cause: LossCause) -> StageLost:
        return StageLost(self._describe(stage, reason), cause=cause)

    def _describe(self, stage: int, reason: str) -> str:
        return f"stage {stage} of {len(self.assignments)}, on node {self.nodes[stage].name!r}, is lost: {reason}"


def _choose(loss: StageLost, found: Sequence[StageLost], reported: Sequence[Failure]) -> StageLost:
    """Return the best explanation of ``loss``: an invalid frame, else the end of a stage, else all reports."""
    reports = [StageLost(each.message, cause=each.cause) for each in reported]
    roots = [each for each in (*found, *reports) if each.cause == "invalid_frame"]
    if best := roots or found:
        return StageLost(best[0].message, loss.hint, cause=best[0].cause)
    others = [each.message for each in reports if each.message != loss.reason]
    return StageLost("; ".join((loss.message, *others)), loss.hint, cause=loss.cause) if others else loss
