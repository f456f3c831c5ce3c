"""An in-process transport whose peers have roles, like transports with keys."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.transport import Frame, Link, NodeRole, TransportPlan


class KeyedLink:
    """A link that knows the role of its peer; see `parallax_core.api.Guarded`."""

    def __init__(self, link: Link, role: NodeRole) -> None:
        self._link = link
        self.role: NodeRole = role
        self.is_admitted = False

    @property
    def peer(self) -> str:
        return self._link.peer

    def admit(self) -> None:
        self.is_admitted = True

    async def send(self, frame: Frame) -> None:
        await self._link.send(frame)

    async def receive(self) -> Frame:
        return await self._link.receive()

    async def close(self) -> None:
        await self._link.close()


class KeyedTransport(InProcessTransport):
    """Gives each node the role in ``roles``, by node name, or "any"."""

    def __init__(self, plan: TransportPlan, roles: Mapping[str, NodeRole]) -> None:
        super().__init__(plan)
        self._roles = roles
        self.peers: dict[str, KeyedLink] = {}

    async def connect(self, address: str, node: str) -> Link:  # type: ignore[override]
        return self._know(await super().connect(address, node))

    async def accept(self) -> Link:  # type: ignore[override]
        return self._know(await super().accept())

    def _know(self, link: Link) -> KeyedLink:
        self.peers[link.peer] = KeyedLink(link, self._roles.get(link.peer, "any"))
        return self.peers[link.peer]
