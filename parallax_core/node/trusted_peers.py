"""Keeps the keys of the nodes to which a head introduces this one."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_core.contracts.joining import Introducing
from parallax_core.contracts.transport import Transport


class TrustedPeers:
    """Makes a transport trust the neighbours of a stage, and nodes that measure their links to this one."""

    def __init__(self, transport: Transport) -> None:
        """Tell ``transport``, if it takes keys from a head."""
        self._transport = transport
        self._keys: dict[str, Mapping[str, bytes]] = {}

    def trust(self, reason: str, keys: Mapping[str, bytes]) -> None:
        """Trust these nodes as workers, by their keys, in place of those that were trusted for the same reason."""
        self._keys[reason] = {node: key for node, key in keys.items() if node and key}
        if isinstance(self._transport, Introducing):
            self._transport.introduce({node: key for each in self._keys.values() for node, key in each.items()})
