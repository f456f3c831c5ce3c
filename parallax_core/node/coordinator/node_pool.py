"""Gives every model a node on each machine: the one that has joined, or a further one, which that one starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import further_node, is_lease
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import EndNode, StartNode

logger = logging.getLogger(__name__)

END_S = 10.0
"""Seconds that a further node may take to end."""
NodeUses = Mapping[str, int]
"""By node: the bytes that it takes for its model."""


@dataclass(frozen=True, slots=True)
class FurtherNode:
    """A further node that was asked for."""

    first: JoinedNode
    """The node that starts it, as it had joined then."""
    number: int
    model: str


class ModelNodes:
    """The nodes of one model; what a `Coordinator` knows of the cluster."""

    def __init__(self, pool: NodePool, model: str) -> None:
        self._pool = pool
        self.model = model
        self.changed = asyncio.Event()
        """Set whenever a node has joined, has reported or is gone."""
        self.find_uses: Callable[[], NodeUses] = dict
        """Returns the bytes that the model takes on each of its nodes, or is about to take."""
        self.leases: Mapping[str, int] = {}
        """By node: the number up to which leases of it are wanted."""
        self.num_lost = 0
        """Nodes that are gone, although they were not to end."""

    @property
    def joined(self) -> tuple[JoinedNode, ...]:
        """The nodes of this model, in the order of joining."""
        return self._pool.list_nodes(self.model)

    @property
    def are_complete(self) -> bool:
        """Whether each machine has a node for the model, and has said what it has."""
        firsts = self._pool.firsts
        return all(first.report is not None for first in firsts) and len(self.joined) >= len(firsts)

    def note_leaving(self, name: str) -> None:
        """Note that a node is about to end."""
        self._pool.registry.note_leaving(name)

    def want_leases(self, numbers: Mapping[str, int]) -> None:
        """Have nodes, by their names, open leases up to a number each, now or when they join."""
        self.leases = numbers
        self._pool.update_leases()

    def find_first(self, node: JoinedNode) -> JoinedNode | None:
        """Return the node that has joined by itself on the machine of ``node``; None: it is gone."""
        return self._pool.find_first(node)


class NodePool:
    """Divides the nodes of a registry among models: each has one on every machine. Belongs to one event loop.

    A machine is the node that has joined by itself, with the further nodes that it starts when it is asked to. A model
    that comes first gets that node itself; each other one a further node, which is a process of its own, so that its
    memory is surely free once it has ended.
    """

    def __init__(self, registry: NodeRegistry) -> None:
        """Divide the nodes that join ``registry``."""
        self.registry = registry
        self.models: dict[str, ModelNodes] = {}
        """By name: the models that have nodes."""
        self._owners: dict[JoinedNode, str] = {}
        """By node: the model that has it."""
        self._further: dict[str, FurtherNode] = {}
        """By name: the further nodes that were asked for."""
        self._numbers: dict[JoinedNode, int] = {}
        """By node that has joined by itself: the last number that it was given."""
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def firsts(self) -> list[JoinedNode]:
        """The nodes that have joined by themselves, one for each machine."""
        return [node for node in self.registry.joined if node.name not in self._further and not is_lease(node.name)]

    def list_nodes(self, model: str) -> tuple[JoinedNode, ...]:
        """Return the nodes of a model, in the order of joining."""
        return tuple(node for node in self.registry.joined if self._owners.get(node) == model)

    def find_owner(self, name: str) -> str | None:
        """Return the model that has the node of a name; None: none."""
        return next((model for node, model in self._owners.items() if node.name == name), None)

    def find_first(self, node: JoinedNode) -> JoinedNode | None:
        """Return the node that has joined by itself on the machine of ``node``; None: it is gone."""
        further = self._further.get(node.name)
        first = further.first if further is not None else node
        return None if first.channel.ended.is_set() else first

    def update_leases(self) -> None:
        """Have nodes open the leases that any model wants."""
        wanted = [nodes.leases for nodes in self.models.values()]
        self.registry.want_leases({name: number for numbers in wanted for name, number in numbers.items()})

    def open(self, model: str) -> ModelNodes:
        """Give a model a node on each machine, now and whenever one joins, and return these."""
        nodes = self.models[model] = ModelNodes(self, model)
        self.update()
        return nodes

    async def close(self, model: str) -> None:
        """End the further nodes of a model, and have the others release what they have loaded."""
        nodes = self.list_nodes(model)
        del self.models[model]
        for name, further in list(self._further.items()):
            if further.model == model:
                del self._further[name]
                self._send(further.first, EndNode(further.number))
        for node in nodes:
            if node in self._numbers:
                await self.registry.unload(node.name)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        await node.channel.ended.wait()
            self._owners.pop(node, None)
        self.update()

    async def follow(self) -> None:
        """Divide the nodes anew whenever the registry has changed, until cancelled."""
        try:
            while True:
                await self.registry.changed.wait()
                self.registry.changed.clear()
                self.update()
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    def update(self) -> None:
        """Give models the nodes that have joined, and ask for those that are missing."""
        self._forget()
        for first in self.firsts:
            self._numbers.setdefault(first, 0)
            self._give(first)
        for node in self.registry.joined:
            if (further := self._further.get(node.name)) is not None:
                self._owners[node] = further.model
        for nodes in self.models.values():
            nodes.changed.set()

    def _give(self, first: JoinedNode) -> None:
        """Give each model a node on a machine: the one that has joined by itself, or a further one, which starts."""
        for model in self.models:
            if self._owners.get(first) == model or self._has_further(first, model):
                continue
            if first in self._owners:
                self._ask(first, model)
            else:
                self._owners[first] = model

    def _forget(self) -> None:
        """Forget the nodes that are gone."""
        joined = set(self.registry.joined)
        for node in [each for each in self._owners if each not in joined]:
            if (nodes := self.models.get(self._owners.pop(node))) is not None:
                nodes.num_lost += 1
        for first in [each for each in self._numbers if each not in joined]:
            del self._numbers[first]
        names = {node.name for node in joined}
        for name, further in list(self._further.items()):
            if further.first not in joined and name not in names:
                del self._further[name]

    def _has_further(self, first: JoinedNode, model: str) -> bool:
        return any(each.first is first and each.model == model for each in self._further.values())

    def _ask(self, first: JoinedNode, model: str) -> None:
        number = self._numbers[first] = self._numbers[first] + 1
        self._further[further_node(first.name, number)] = FurtherNode(first, number, model)
        logger.info("further node is started node=%s model=%s", further_node(first.name, number), model)
        self._send(first, StartNode(number))

    def _send(self, node: JoinedNode, message: StartNode | EndNode) -> None:
        sending = asyncio.create_task(_send(node, message))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)


async def _send(node: JoinedNode, message: StartNode | EndNode) -> None:
    with contextlib.suppress(PeerLost):  # its further nodes end with it
        await node.channel.send(message)
