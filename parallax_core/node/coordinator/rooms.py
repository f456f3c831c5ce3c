"""Divides the memory of machines among the models that have nodes on them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from parallax_core.contracts.placement import LinkProfile
from parallax_core.node.coordinator.coordinator import Describe, UsableNodes
from parallax_core.node.coordinator.node_pool import ModelNodes, NodePool
from parallax_core.node.membership.joined_node import JoinedNode


class MachineRooms:
    """Finds the memory that a model may use on each machine: all, without what other models take there."""

    def __init__(self, pool: NodePool) -> None:
        """Divide the memory of the machines of ``pool``."""
        self.pool = pool
        self._totals: dict[JoinedNode, int] = {}

    def find_total(self, first: JoinedNode) -> int:
        """Return the bytes that all models may use on the machine of a node: the most that was ever free."""
        self._totals = {node: total for node, total in self._totals.items() if not node.channel.ended.is_set()}
        free = first.report.device.memory if first.report is not None else first.join.memory
        total = self._totals[first] = max(free, self._totals.get(first, 0))
        return total

    def note_total(self, first: JoinedNode, memory: int) -> None:
        """Note that so many bytes were free on the machine of a node before anything was loaded."""
        self._totals[first] = max(memory, self._totals.get(first, 0))

    def find_room(self, first: JoinedNode, model: str) -> int:
        """Return the bytes that a model may use on the machine of ``first``."""
        taken = 0
        for name, nodes in self.pool.models.items():
            if name != model:
                uses = nodes.find_uses()
                taken += sum(uses.get(node.name, 0) for node in nodes.joined if nodes.find_first(node) is first)
        return max(0, self.find_total(first) - taken)

    def find_share(self, node: JoinedNode, nodes: ModelNodes) -> float:
        """Return the share of its machine's memory that a node of ``nodes`` may use; more than 0, at most 1."""
        first = nodes.find_first(node)
        total = self.find_total(first) if first is not None else 0
        return max(0.01, self.find_room(first, nodes.model) / total) if first is not None and total else 1.0


class ModelProfiles:
    """The profiles of the nodes of one model: those of their machines, with the memory that the model may use."""

    def __init__(self, nodes: ModelNodes, rooms: MachineRooms, describe: Describe) -> None:
        """Describe ``nodes`` by what ``describe`` says of their machines, with memory as ``rooms`` divides it."""
        self._nodes = nodes
        self._rooms = rooms
        self._describe = describe

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profile of the nodes whose machines have said what they have; see `NodeProfiles.describe`."""
        firsts = {node.name: self._nodes.find_first(node) for node in nodes}
        found = {first.name: first for first in firsts.values() if first is not None}
        names = {first.name: name for name, first in firsts.items() if first is not None}
        usable = self._describe(found.values())
        for each in usable.cluster.nodes:
            self._rooms.note_total(found[each.name], each.device.memory)
        profiles = tuple(
            replace(
                each,
                name=names[each.name],
                device=replace(each.device, memory=self._rooms.find_room(found[each.name], self._nodes.model)),
            )
            for each in usable.cluster.nodes
        )
        links = tuple(_rename(link, names) for link in usable.cluster.links)
        others = {names[name]: reason for name, reason in usable.others.items()}
        others.update({name: "its machine leaves" for name, first in firsts.items() if first is None})
        return UsableNodes(replace(usable.cluster, nodes=profiles, links=links), others)


def _rename(link: LinkProfile, names: dict[str, str]) -> LinkProfile:
    one, other = (names.get(end, end) for end in link.ends)
    return replace(link, ends=(one, other))
