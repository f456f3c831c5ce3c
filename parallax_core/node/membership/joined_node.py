"""A node that has joined a head, and what it has said of itself."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.status import NodeStatus
from parallax_core.node.channel import Channel
from parallax_core.wire.membership import Join, Loading
from parallax_core.wire.profile import LinkTried, NodeReport
from parallax_core.wire.relay import Relinked

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldLayers:
    """The layers that a node has in memory."""

    model: str
    """The model as the user of the head names it."""
    layers: LayerRange


@dataclass(slots=True, eq=False)
class JoinedNode:
    """A node that has joined."""

    channel: Channel
    join: Join
    report: NodeReport | None = None
    """What it said last of its device and its links; None: nothing yet."""
    loading: Loading | None = None
    """How far it is in loading a stage; None: it loads none, or has not said."""
    relay: str = ""
    """The relay that links its stage to the next one; empty for a direct link or none."""
    trials: dict[str, asyncio.Future[LinkTried]] = field(default_factory=dict)
    """By node: what comes of a link to it that this one was asked to try."""
    status: NodeStatus | None = None
    """Its status as of its last report; None: it was not asked for since."""
    num_leases: int = 0
    """The number up to which it was asked to open leases."""
    patience_s: float = 0.0
    """Seconds of silence that never count as its loss, besides those of all nodes: it was taken for lost before."""
    loaded: HeldLayers | None = field(init=False)
    """What it has in memory; None: nothing, or it is loading."""

    def __post_init__(self) -> None:
        join = self.join
        is_loaded = join.stop > join.start and not join.is_fixed
        self.loaded = HeldLayers(join.model, LayerRange(join.start, join.stop)) if is_loaded else None

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.channel.peer

    def note_relinked(self, told: Relinked) -> None:
        """Note over which relay its stage is linked to the next one now."""
        self.relay = told.relay

    def note_tried(self, told: LinkTried) -> None:
        """Hand over what came of a link to whoever has asked."""
        trial = self.trials.pop(told.peer, None)
        if trial is not None and not trial.done():
            trial.set_result(told)

    def note_report(self, report: NodeReport) -> None:
        """Keep a report of the node in place of the one before."""
        if self.report is None:
            memory = report.device.memory / 10**9
            logger.info("node has reported node=%s device=%r memory=%.3gGB", self.name, report.device.name, memory)
        self.report, self.status = report, None
