"""Divides the memory of machines among the models that have nodes on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from parallax_cluster.model_variants import FORM, ModelVariants, show_model
from parallax_cluster.node.coordinator.coordinator import Describe, UsableNodes
from parallax_cluster.node.coordinator.node_pool import ModelNodes, NodePool
from parallax_core.api import ClusterProfile, LinkProfile, NodeProfile
from parallax_core.node.membership.joined_node import JoinedNode


class MachineRooms:
    """Finds the memory left for a model on each machine."""

    def __init__(self, pool: NodePool) -> None:
        """Divide the memory of the machines of ``pool``."""
        self.pool = pool
        self._totals: dict[JoinedNode, int] = {}
        self._num_kept = 0
        """The machines that `_totals` had when those that are gone were forgotten last."""

    def find_total(self, first: JoinedNode) -> int:
        """Return the bytes that all models may use on the machine of a node: the most that was ever free."""
        return self.note_total(first, first.report.device.memory if first.report is not None else first.join.memory)

    def note_total(self, first: JoinedNode, memory: int) -> int:
        """Note the free bytes on a node's machine, and return the most that were ever free."""
        if first not in self._totals and len(self._totals) > 2 * self._num_kept:
            self._totals = {node: total for node, total in self._totals.items() if not node.channel.ended.is_set()}
            self._num_kept = len(self._totals)
        total = self._totals[first] = max(memory, self._totals.get(first, 0))
        return total

    def find_room(self, first: JoinedNode, model: str) -> int:
        """Return the bytes that a model may use on the machine of ``first``."""
        others = [nodes for name, nodes in self.pool.models.items() if name != model]
        taken = sum(nodes.find_use(node.name) for nodes in others if (node := nodes.find_own(first)) is not None)
        return max(0, self.find_total(first) - taken)

    def find_share(self, node: JoinedNode, nodes: ModelNodes) -> float:
        """Return the share of its machine's memory that a node of ``nodes`` may use; more than 0, at most 1."""
        first = nodes.find_first(node)
        total = self.find_total(first) if first is not None else 0
        return max(0.01, self.find_room(first, nodes.model) / total) if first is not None and total else 1.0


class ModelProfiles:
    """The profiles of the nodes of one model: those of their machines, with the memory that the model may use."""

    def __init__(
        self,
        nodes: ModelNodes,
        rooms: MachineRooms,
        describe: Describe,
        model: str = "",
        variants: ModelVariants | None = None,
    ) -> None:
        """Describe ``nodes`` by what ``describe`` says of their machines, with memory as ``rooms`` divides it.

        ``model`` is the name of the model in their assignments, unless ``variants`` say otherwise.
        """
        self._nodes = nodes
        self._model, self._variants = model, variants
        self._rooms = rooms
        self._describe = describe
        self._made: dict[str, tuple[NodeProfile, NodeProfile]] = {}
        """By machine: its profile, and the node's profile made from it last."""
        self._renamed: dict[int, tuple[LinkProfile, LinkProfile]] = {}
        """By the identity of a link between machines: the link itself, and that of the nodes on them."""

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profiles of nodes whose machines have reported; see `NodeProfiles.describe`."""
        firsts = {node.name: self._nodes.find_first(node) for node in nodes}
        found = {first.name: first for first in firsts.values() if first is not None}
        names = {first.name: name for name, first in firsts.items() if first is not None}
        usable = self._describe(found.values())
        models = {node.name: self._find_model(node) for node in nodes}
        for each in usable.cluster.nodes:
            self._rooms.note_total(found[each.name], each.device.memory)
        rooms = {each.name: self._rooms.find_room(found[each.name], self._nodes.model) for each in usable.cluster.nodes}
        self._made = {
            each.name: self._make(each, (name := names[each.name]), rooms[each.name], models[name])
            for each in usable.cluster.nodes
        }
        cluster = replace(usable.cluster, nodes=tuple(made for _, made in self._made.values()))
        if any(first != name for first, name in names.items()):
            cluster = self._rename_network(cluster, names)
        others = {names[name]: reason for name, reason in usable.others.items()}
        others.update({name: "its machine leaves" for name, first in firsts.items() if first is None})
        loaded = {node.name: node.loaded for node in nodes if node.loaded is not None}
        holding = {name: each.layers for name, each in loaded.items() if each.model == models[name]}
        return UsableNodes(cluster, others, holding)

    def _find_model(self, node: JoinedNode) -> str:
        """Return the model whose files a node loads."""
        return self._variants.note(node.name, node.join.backends) if self._variants else self._model

    def _make(self, machine: NodeProfile, name: str, room: int, model: str) -> tuple[NodeProfile, NodeProfile]:
        """Return a machine's profile and that of its node, the same object if nothing changed."""
        before, made = self._made.get(machine.name, (None, machine))
        if before is not machine or (made.name, made.device.memory) != (name, room):
            labels = (*machine.labels, (FORM, show_model(model))) if self._variants else machine.labels
            made = replace(machine, name=name, device=replace(machine.device, memory=room), labels=labels)
        return machine, made

    def _rename_network(self, cluster: ClusterProfile, names: Mapping[str, str]) -> ClusterProfile:
        """Return a cluster whose links between machines are those of the nodes on them."""
        self._renamed = {id(link): (link, self._rename(link, names)) for link in cluster.links}
        links = tuple(renamed for _, renamed in self._renamed.values())
        unreachable = frozenset((names.get(one, one), names.get(other, other)) for one, other in cluster.unreachable)
        return replace(cluster, links=links, unreachable=unreachable)

    def _rename(self, link: LinkProfile, names: Mapping[str, str]) -> LinkProfile:
        """Return the link of nodes on machines, which is the same object if nothing is new."""
        one, other = link.ends
        ends = names.get(one, one), names.get(other, other)
        before, renamed = self._renamed.get(id(link), (None, link))
        return renamed if before is link and renamed.ends == ends else replace(link, ends=ends)
