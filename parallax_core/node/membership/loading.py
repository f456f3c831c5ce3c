"""Loads a stage on a node, and checks its weights."""

from __future__ import annotations

import asyncio
import contextlib

from parallax_core.base.errors import BackendFailed, ParallaxError, PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import StageInfo
from parallax_core.node.executor.load_clock import LOADING_HINT
from parallax_core.node.executor.weights_check import DifferentWeights, WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import Leave, Linked, Loading, Ready, Refusal
from parallax_core.wire.messages import Failure, Heartbeat, Result

AssignmentReply = Loading | Ready | Refusal | Linked
"""The messages of a node that is becoming a stage."""


class NodeRefused(ParallaxError):
    """A node cannot load its stage."""

    def __init__(self, node: str, message: str, hint: str = "", *, lacks_leases: bool = False) -> None:
        super().__init__(message, hint)
        self.node = node
        self.lacks_leases = lacks_leases
        """Whether its backend has no leases for the model; it may still load a stage that shares nothing."""


class LoadingHung(BackendFailed):
    """A node has reported no loading progress for too long."""

    def __init__(self, node: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.node = node


class LinkFailed(ParallaxError):
    """The node of a stage does not reach that of the next one."""

    def __init__(self, one: str, other: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.ends = one, other
        """The names of both nodes."""

    @classmethod
    def find(
        cls, node: JoinedNode, before: JoinedNode | None, after: JoinedNode | None, refusal: Refusal
    ) -> ParallaxError:
        """Return which link of a stage that has refused a `Hop` has failed: to the next one, or from the one before."""
        told = refusal.message, refusal.hint
        if after is not None and refusal.unreached == after.name:
            return cls(node.name, after.name, *told)
        return cls(before.name, node.name, *told) if before is not None else ParallaxError(*told)


async def load_stage(node: JoinedNode, assignment: StageAssignment, attempt: Epoch, progress: Progress) -> StageInfo:
    """Assign a stage to a node, and return its info once it is loaded.

    Raises:
        PeerLost: if the node is gone, or sends an unexpected message.
        LoadingHung: if it reports no progress within ``load_timeout_s``.
        NodeRefused: if it refuses, with its reason.
    """
    await node.channel.send(assignment.assign(attempt))
    node.loaded = None
    try:
        while True:
            match await _receive_loading(node, assignment, attempt):
                case Loading(_, _, task, done, total, unit) as loading:
                    node.loading = loading
                    progress(task, done, None if total < 0 else total, unit)
                case Ready(_, _, info):
                    node.loaded = assignment.holds
                    return info
                case Refusal(_, stage, message, hint, lacks_leases):
                    reason = f"stage {stage} on node {node.name!r}: {message}"
                    raise NodeRefused(node.name, reason, hint, lacks_leases=lacks_leases)
    finally:
        node.loading = None


async def receive_reply(node: JoinedNode, assignment: StageAssignment, attempt: Epoch) -> AssignmentReply:
    """Return the node's next message of this attempt.

    Raises:
        PeerLost: if the node is gone, or sends an unexpected message.
    """
    while True:
        message = await node.channel.receive()
        if isinstance(message, AssignmentReply):
            if (message.epoch, message.stage) == (attempt, assignment.stage):
                return message
        elif not isinstance(message, Result | Failure | Heartbeat | Leave):
            await node.channel.leave()
            raise PeerLost(f"node {node.name!r} sent a {type(message).__name__}, which is unexpected here")


async def check_weights(
    node: JoinedNode, assignment: StageAssignment, info: StageInfo, attempt: Epoch, weights: WeightsCheck
) -> None:
    """Compare the weights of a stage with the other stages'; a node with different ones is turned away.

    Raises:
        DifferentWeights: if they differ.
    """
    try:
        await weights.check(f"stage {assignment.stage} on node {node.name!r}", info.weights_parts, assignment.model)
    except DifferentWeights as error:
        error.node = node.name
        with contextlib.suppress(PeerLost):
            await node.channel.send(Refusal(attempt, assignment.stage, error.message, error.hint))
            await node.channel.leave()
        raise


async def _receive_loading(node: JoinedNode, assignment: StageAssignment, attempt: Epoch) -> AssignmentReply:
    try:
        async with asyncio.timeout(assignment.load_timeout_s):
            return await receive_reply(node, assignment, attempt)
    except TimeoutError as error:
        reason = f"it has reported no loading progress for {assignment.load_timeout_s:g} s"
        message = f"stage {assignment.stage} on node {node.name!r}: {reason}"
        raise LoadingHung(node.name, message, LOADING_HINT) from error
