"""A node that has joined a head, and what it has said of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parallax_core.contracts.placement import LinkProfile, NodeProfile
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.status import NodeStatus
from parallax_core.node.channel import Channel
from parallax_core.wire.membership import Join, Loading


@dataclass(frozen=True, slots=True)
class HeldLayers:
    """The layers that a node has in memory."""

    model: str
    """The model as the user of the head names it."""
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """What a node has reported of itself and its links."""

    profile: NodeProfile
    links: tuple[LinkProfile, ...] = ()
    relays: Mapping[str, str] = field(default_factory=dict)
    """By node: the relay over which it is reached."""
    unreached: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """By distribution: the version of core or of a plugin."""


@dataclass(slots=True, eq=False)
class JoinedNode:
    """A node that has joined."""

    channel: Channel
    join: Join
    loading: Loading | None = None
    """How far it is in loading a stage; None: it loads none, or has not said."""
    relay: str = ""
    """The relay that links its stage to the next one; empty for a direct link or none."""
    report: Any = None
    """The message of a service by which it reported itself last, or None."""
    trials: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    """By node: the outcome of a link to it that this one was asked to try."""
    reported: ReportedNode | None = None
    """What it is known to have, or None."""
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

    @property
    def address(self) -> str:
        """Where other nodes reach it."""
        return self.join.address
