"""The service that takes the reports of nodes, and introduces nodes to each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from parallax_cluster.node.membership.introductions import Introducer, Member
from parallax_cluster.node.profile.service import PURPOSES
from parallax_cluster.reports import make_link, make_node
from parallax_cluster.wire.profile import LinkTried, NodeReport
from parallax_core.api import JoinedPeer, LinkPurpose, NodeService, Takers, is_further, is_lease
from parallax_core.node.membership.joined_node import JoinedNode, ReportedNode
from parallax_core.node.membership.registry import NodeRegistry

logger = logging.getLogger(__name__)


class ReportService(NodeService):
    """Notes reports of nodes, and introduces nodes to each other if they measure their links."""

    def __init__(self, registry: NodeRegistry) -> None:
        """Serve the head of ``registry``."""
        self._registry = registry
        self._introducer = Introducer(self._list_members if registry.measures_links else list)

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """How to serve links that are measured."""
        return PURPOSES

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Note what a node reports, and introduce it to others."""
        assert isinstance(peer, JoinedNode), "a registry has no others"
        self._introducer.note_change()
        try:
            yield {NodeReport: partial(self._note, peer), LinkTried: partial(note_tried, peer)}
        finally:
            self._introducer.note_change()

    async def close(self) -> None:
        """Introduce no more nodes."""
        await self._introducer.stop()

    def _note(self, node: JoinedNode, report: NodeReport) -> None:
        is_first = node.report is None
        note_report(node, report)
        if is_first:  # later ones change little, and are read from time to time
            self._registry.changed.set()

    def _list_members(self) -> list[Member]:
        nodes = (node for node in self._registry.joined if not (is_further(node.name) or is_lease(node.name)))
        return [(node.channel, node.join) for node in nodes]


def note_report(node: JoinedNode, report: NodeReport) -> None:
    """Keep the report of a node in place of an earlier one."""
    if node.report is None:
        memory = report.device.memory / 10**9
        logger.info("node has reported node=%s device=%r memory=%.3gGB", node.name, report.device.name, memory)
    node.report, node.status = report, None
    node.reported = ReportedNode(
        profile=make_node(node.name, report),
        links=tuple(make_link(node.name, each) for each in report.links),
        relays={each.peer: each.relay for each in report.links if each.relay},
        unreached=report.unreached,
        versions=dict(report.versions),
    )


def note_tried(node: JoinedNode, told: LinkTried) -> None:
    """Hand over what came of a link to whoever has asked."""
    trial: asyncio.Future[LinkTried] | None = node.trials.pop(told.peer, None)
    if trial is not None and not trial.done():
        trial.set_result(told)
