"""Nodes of this process some of which cannot connect to others, as behind routers and firewalls."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.api import Link, PeerLost, Transport
from tests.unit.node.cluster import Node


@dataclass
class Walls:
    """Which node cannot connect to which, and the links that there are."""

    gaps: set[tuple[str, str]] = field(default_factory=set)
    """The first of each pair cannot connect to the second."""
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    """By pair: how many attempts to connect succeed before all fail."""
    attempts: list[tuple[str, str]] = field(default_factory=list)
    """Who has tried to connect to whom, besides the head."""
    _links: dict[tuple[str, str], list[Link]] = field(default_factory=dict)

    def build(self, *names: str) -> dict[str, Node]:
        """Return nodes behind these walls."""
        nodes = {name: Node(name) for name in names}
        for node in nodes.values():
            node.transport = PartedTransport(node.transport, node.name, self)  # type: ignore[assignment]
        return nodes

    async def part(self, one: str, other: str) -> None:
        """End the links between two nodes, and have them make no others."""
        for pair in ((one, other), (other, one)):
            self.gaps.add(pair)
            for link in self._links.pop(pair, []):
                await link.close()

    def mend(self) -> None:
        """Let all nodes connect to each other."""
        self.gaps.clear()
        self.refusals.clear()

    def check(self, pair: tuple[str, str]) -> None:
        """Raise PeerLost if the first of a pair cannot connect to the second."""
        if pair[1] == "head":
            return
        self.attempts.append(pair)
        left = self.refusals.get(pair)
        if left is not None:
            self.refusals[pair] = left - 1
        if pair in self.gaps or (left is not None and left <= 0):
            raise PeerLost(f"no node answers at {pair[1]}", "is a firewall in between?")

    def note(self, pair: tuple[str, str], link: Link) -> None:
        """Note a link."""
        self._links.setdefault(pair, []).append(link)


class PartedTransport:
    """A transport whose connections may be refused."""

    def __init__(self, transport: Transport, node: str, walls: Walls) -> None:
        self._transport = transport
        self._node = node
        self._walls = walls

    @property
    def address(self) -> str:
        """Where others reach this node."""
        return self._transport.address

    async def start(self) -> None:
        """Begin to listen."""
        await self._transport.start()

    async def connect(self, address: str, node: str) -> Link:
        """Make a link, if there is no wall."""
        self._walls.check((self._node, node))
        link = await self._transport.connect(address, node)
        self._walls.note((self._node, node), link)
        return link

    async def accept(self) -> Link:
        """Wait for a link."""
        return await self._transport.accept()

    async def stop(self) -> None:
        """Close every link."""
        await self._transport.stop()
