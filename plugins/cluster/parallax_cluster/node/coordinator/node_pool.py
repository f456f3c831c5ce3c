"""Gives every model a node on each machine: the one that joined, or a further one that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parallax_cluster.node.coordinator.drained_machines import DrainedMachines
from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_cluster.node.membership.lease_opener import LeaseOpener
from parallax_cluster.wire.further import EndNode, StartNode
from parallax_core.api import PeerLost, UnknownName, further_node, is_lease, name_machine
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry

logger = logging.getLogger(__name__)

END_S = 10.0
"""Seconds that a further node may take to end."""
PAUSE_S = 0.05
"""Seconds between two times that nodes are divided: many join at once when a server starts again."""
TURN_S = 0.02
"""Seconds by which each model is told of news later than the one before it."""


@dataclass(frozen=True, slots=True)
class FurtherNode:
    """A further node that was asked for."""

    first: JoinedNode
    """The parent node, as joined when it was asked."""
    number: int
    model: str


@dataclass(frozen=True, slots=True)
class DividedNodes:
    """The nodes of a registry, as they are divided."""

    joined: tuple[JoinedNode, ...]
    """All of them, with leases."""
    firsts: tuple[JoinedNode, ...]
    """Those that have joined by themselves, one for each machine."""
    models: Mapping[str, tuple[JoinedNode, ...]]
    """By model: its nodes, in the order of joining."""


class ModelNodes:
    """The nodes of one model; what a `Coordinator` knows of the cluster."""

    def __init__(self, pool: NodePool, model: str) -> None:
        self._pool = pool
        self.model = model
        self.changed = asyncio.Event()
        """Set whenever a node has joined, has reported first or is gone."""
        self.find_use: Callable[[str], int] = lambda _: 0
        """Returns the bytes that the model takes on a node of a name, or is about to take."""
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

    def get(self, name: str) -> JoinedNode | None:
        """Return the model's node called ``name``, or None."""
        return self._pool.get(name, self.model)

    def note_leaving(self, name: str) -> None:
        """Note that a node is about to end."""
        self._pool.registry.note_leaving(name)

    def want_leases(self, numbers: Mapping[str, int]) -> None:
        """Set the number of leases to open on each node, by name, now or when it joins."""
        self.leases = numbers
        self._pool.update_leases()

    def find_first(self, node: JoinedNode) -> JoinedNode | None:
        """Return the node that has joined by itself on the machine of ``node``; None: it is gone."""
        return self._pool.find_first(node)

    def find_own(self, first: JoinedNode) -> JoinedNode | None:
        """Return this model's node on the machine of ``first``, or None."""
        return self._pool.find_own(first, self.model)


class NodePool:
    """Divides the nodes of a registry among models: each has one on every machine. Belongs to one event loop.

    A machine is the node that has joined by itself, with the further nodes that it starts when it is asked to. A model
    that comes first gets that node itself; each other one a further node, which is a process of its own, so that its
    memory is surely free once it has ended.
    """

    def __init__(self, registry: NodeRegistry, store: PlanStore | None = None) -> None:
        """Divide the nodes that join ``registry``; ``store`` keeps the drained machines for a restart."""
        self.registry = registry
        self.drained = DrainedMachines(store)
        self.models: dict[str, ModelNodes] = {}
        """By name: the models that have nodes."""
        self._owners: dict[JoinedNode, str] = {}
        """By node: the model that has it."""
        self._further: dict[str, FurtherNode] = {}
        """By name: the further nodes that were asked for."""
        self._asked: dict[tuple[JoinedNode, str], str] = {}
        """By machine and model: the name of the further node that was asked for."""
        self._numbers: dict[JoinedNode, int] = {}
        """By node that has joined by itself: the last number that it was given."""
        self._sending: set[asyncio.Task[None]] = set()
        self._divided: DividedNodes | None = None
        """None: the nodes are to be divided anew."""

    @property
    def firsts(self) -> tuple[JoinedNode, ...]:
        """The nodes that have joined by themselves, one for each machine."""
        return self._list().firsts

    def list_nodes(self, model: str) -> tuple[JoinedNode, ...]:
        """Return the nodes of a model, in the order of joining."""
        return self._list().models.get(model, ())

    def get(self, name: str, model: str) -> JoinedNode | None:
        """Return a model's node called ``name``, or None."""
        node = self.registry.get(name)
        return node if node is not None and self._owners.get(node) == model else None

    def find_first(self, node: JoinedNode) -> JoinedNode | None:
        """Return the node that has joined by itself on the machine of ``node``; None: it is gone."""
        further = self._further.get(node.name)
        first = further.first if further is not None else node
        return None if first.channel.ended.is_set() else first

    def find_own(self, first: JoinedNode, model: str) -> JoinedNode | None:
        """Return a model's node on the machine of ``first``, or None."""
        if (name := self._asked.get((first, model))) is not None:
            return self.registry.get(name)
        return first if self._owners.get(first) == model else None

    async def note_drained(self, node: str, *, is_drained: bool) -> None:
        """Give the machine of a node, or of that name, no layers from now on, or some again.

        Raises:
            UnknownName: if it has not joined, or is not drained.
            ParallaxError: if that cannot be kept for a restart.
        """
        machine = name_machine(node)
        if is_drained and machine not in {name_machine(first.name) for first in self.firsts}:
            raise UnknownName(f"no node called {node!r} has joined", "`parallax nodes` lists them")
        if not is_drained and machine not in self.drained.names:
            raise UnknownName(f"no node called {node!r} is drained", "`parallax nodes` shows those that are")
        await self.drained.note(machine, is_drained=is_drained)
        self.update()

    async def remove(self, node: str) -> None:
        """Remove the machine of a node, or of that name, for good.

        Its key is not of the cluster any more, and its links end. It may join again with a new key of its own, or once
        a user has allowed the old one.

        Raises:
            UnknownName: if no key is kept by which it has joined, or may join.
            ParallaxError: if its removal cannot be kept.
        """
        machine, keys = name_machine(node), self.registry.keys
        known = await asyncio.to_thread(keys.list_machines) if keys is not None else {}
        joined = {first.channel.key for first in self.firsts if name_machine(first.name) == machine}
        gone = {key: machine for name, key in known.items() if name == machine or key in joined}
        if keys is None or not gone:
            hint = "`parallax keys list` on the server's machine shows those that may join"
            raise UnknownName(f"no machine called {machine!r} has joined by a key of its own", hint)
        await asyncio.to_thread(keys.take_over, {}, gone, {})
        if machine in self.drained.names:
            await self.drained.note(machine, is_drained=False)
        logger.info("machine removed machine=%s", machine)
        self.update()

    def update_leases(self) -> None:
        """Ask nodes to open the leases that any model wants."""
        wanted = [nodes.leases for nodes in self.models.values()]
        self.registry.services.find(LeaseOpener).want(
            {name: number for numbers in wanted for name, number in numbers.items()}
        )

    def open(self, model: str) -> ModelNodes:
        """Give a model a node on each machine, now and whenever one joins, and return these."""
        nodes, self._divided = ModelNodes(self, model), None
        self.models[model] = nodes
        self.update()
        return nodes

    async def close(self, model: str) -> None:
        """End the further nodes of a model, and have the others release what they have loaded."""
        nodes = self.list_nodes(model)
        del self.models[model]
        for name, further in list(self._further.items()):
            if further.model == model:
                self._drop(name)
                self._send(further.first, EndNode(further.number))
        for node in nodes:
            if node in self._numbers:
                await self.registry.unload(node.name)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        await node.channel.ended.wait()
            self._owners.pop(node, None)
        self._divided = None
        self.update()

    async def follow(self) -> None:
        """Divide the nodes anew whenever the registry has changed, until cancelled."""
        try:
            while True:
                await self.registry.changed.wait()
                self.registry.changed.clear()
                self.update()
                await asyncio.sleep(PAUSE_S)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    def update(self) -> None:
        """Give models the nodes that have joined, and ask for those that are missing; tell models of all news."""
        if self._divided is None or self._divided.joined is not self.registry.joined:
            self._divide()
        loop = asyncio.get_running_loop()
        for number, nodes in enumerate(self.models.values()):
            loop.call_later(number * TURN_S, nodes.changed.set)  # or all would look at all nodes at once

    def _divide(self) -> None:
        self._forget()
        for first in self._list().firsts:
            self._numbers.setdefault(first, 0)
            self._give(first)
        for node in self.registry.joined:
            if (further := self._further.get(node.name)) is not None:
                self._owners[node] = further.model
        self._divided = self._make_list()

    def _list(self) -> DividedNodes:
        """Return the nodes that are there now, as they were divided last."""
        if self._divided is None or self._divided.joined is not self.registry.joined:
            return self._make_list()
        return self._divided

    def _make_list(self) -> DividedNodes:
        joined, models = self.registry.joined, {model: list[JoinedNode]() for model in self.models}
        for node in joined:
            if (owner := self._owners.get(node)) is not None and owner in models:
                models[owner].append(node)
        firsts = tuple(node for node in joined if node.name not in self._further and not is_lease(node.name))
        return DividedNodes(joined, firsts, {model: tuple(nodes) for model, nodes in models.items()})

    def _give(self, first: JoinedNode) -> None:
        """Give each model a node on a machine: the one that has joined by itself, or a further one, which starts."""
        for model in self.models:
            if self._owners.get(first) == model or (first, model) in self._asked:
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
                self._drop(name)

    def _drop(self, name: str) -> None:
        further = self._further.pop(name)
        del self._asked[further.first, further.model]

    def _ask(self, first: JoinedNode, model: str) -> None:
        number = self._numbers[first] = self._numbers[first] + 1
        name = self._asked[first, model] = further_node(first.name, number)
        self._further[name] = FurtherNode(first, number, model)
        logger.info("further node is started node=%s model=%s", name, model)
        self._send(first, StartNode(number))

    def _send(self, node: JoinedNode, message: StartNode | EndNode) -> None:
        sending = asyncio.create_task(_send(node, message))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)


async def _send(node: JoinedNode, message: StartNode | EndNode) -> None:
    with contextlib.suppress(PeerLost):  # its further nodes end with it
        await node.channel.send(message)
