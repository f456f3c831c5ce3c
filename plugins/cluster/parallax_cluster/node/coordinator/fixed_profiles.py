"""Turns what nodes with fixed layers say of themselves into the profile of their cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from parallax_cluster.node.coordinator.coordinator import UsableNodes
from parallax_cluster.node.coordinator.profiles import ASSUMED
from parallax_cluster.reports import ReportedCluster
from parallax_cluster.wire.profile import NodeReport
from parallax_core.api import HEAD, LayerRange
from parallax_core.node.membership.joined_node import JoinedNode


class FixedProfiles:
    """The profiles of nodes with fixed layers of a model, used without waiting for measurements."""

    def __init__(self, model: str) -> None:
        """Describe the nodes that run layers of ``model``, by its full name."""
        self._model = model

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profile of the nodes, and what keeps the others from being used."""
        fixed, others = dict[str, LayerRange](), dict[str, str]()
        reports = dict[str, NodeReport]()
        for node in nodes:
            join = node.join
            if not join.is_fixed or join.model != self._model or join.start >= join.stop:
                others[node.name] = f"it has not announced layers of {self._model}"
                continue
            fixed[node.name] = LayerRange(join.start, join.stop)
            device = msgspec.structs.replace(ASSUMED, memory=join.memory)
            reports[node.name] = node.report or NodeReport(backend="", device=device)
        cluster = ReportedCluster(HEAD, self._model).update(reports)
        profiles = tuple(replace(each, fixed_layers=fixed[each.name]) for each in cluster.nodes)
        return UsableNodes(replace(cluster, nodes=profiles), others)
