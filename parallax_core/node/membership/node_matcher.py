"""Matches the nodes that wait for a stage with the callers that wait for a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from parallax_core.node.membership.joined_node import JoinedNode

Fit = Callable[[JoinedNode], int]
"""Returns how suitable a node is; 0: not at all."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeRequest:
    """A caller that waits for a suitable node."""

    fit: Fit
    name: str
    """The only node that may suit; empty: any may."""
    found: asyncio.Future[JoinedNode]


class NodeMatcher:
    """The nodes and the callers that wait, none of which suit each other: whatever is added is matched at once.

    A caller that names its node costs the same however many others wait. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, JoinedNode] = {}
        """The nodes that wait, by name, in the order in which they began to."""
        self._requests: dict[str, dict[NodeRequest, None]] = {}
        """The callers by the node that they name, in the order of their calls; those that name none under ``""``."""

    @property
    def has_requests(self) -> bool:
        """Whether callers wait."""
        return bool(self._requests)

    def add_request(self, request: NodeRequest) -> JoinedNode | None:
        """Return the most suitable node, of equals the one that waits longest; None: the caller has to wait."""
        named = self.nodes.get(request.name)
        nodes: Iterable[JoinedNode] = self.nodes.values() if not request.name else [named] if named else ()
        best, most = None, 0
        for node in nodes:
            if (fit := request.fit(node)) > most:
                best, most = node, fit
        if best is None:
            self._requests.setdefault(request.name, {})[request] = None
        return best

    def remove_request(self, request: NodeRequest) -> None:
        """Wait no more for a caller that was found a node, or is gone. Idempotent."""
        if (several := self._requests.get(request.name)) is not None:
            several.pop(request, None)
            if not several:
                del self._requests[request.name]

    def add_node(self, node: JoinedNode) -> NodeRequest | None:
        """Return the caller to which a node suits best, of equals the first; None: the node has to wait."""
        best, most = None, 0
        for request in (*self._requests.get(node.name, ()), *self._requests.get("", ())):
            fit = request.fit(node) if not request.found.done() else 0
            if fit > most:
                best, most = request, fit
        if best is None:
            self.nodes[node.name] = node
        return best
