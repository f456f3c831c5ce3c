"""Turns what nodes say of themselves into the profile of their cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from parallax_core.contracts.placement import ClusterProfile, DeviceProfile, NodeProfile
from parallax_core.node.coordinator.coordinator import UsableNodes
from parallax_core.node.membership.registry import JoinedNode


@dataclass(slots=True)
class NodeProfiles:
    """The profiles of the nodes of a coordinator."""

    head: str
    """The node beside the head; empty: none."""
    memories: dict[str, int] = field(default_factory=dict)

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profile of the nodes that have said what they have."""
        found = [self._describe(node) for node in nodes if node.join.memory]
        others = {node.name: "it has not said yet what it has" for node in nodes if not node.join.memory}
        return UsableNodes(ClusterProfile(nodes=tuple(found), head=self.head), others)

    def _describe(self, node: JoinedNode) -> NodeProfile:
        device = DeviceProfile(memory=node.join.memory, flops=1e11, bandwidth=1e10, step_s=1e-3, layer_s=1e-4)
        return NodeProfile(name=node.name, device=device)
