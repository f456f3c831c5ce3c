"""What a kind of deployment adds to stages that the user chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import LoadedSize
from parallax_core.contracts.deployment import Launch
from parallax_core.contracts.joining import ListeningHead
from parallax_core.contracts.transport import Transport, TransportSpec
from parallax_core.node.executor.base import Executor
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.plugins.registry import Offer


class NodeAdmission(Protocol):
    """How machines become nodes of a head, besides by keys that were exchanged."""

    def equip(
        self, registry: NodeRegistry, transport: Transport, offer: Offer[TransportSpec], settings: ServeSettings
    ) -> None:
        """Make a head that does not listen yet admit machines and serve their links."""

    def listening(
        self, registry: NodeRegistry, offer: Offer[TransportSpec], settings: ServeSettings
    ) -> AbstractAsyncContextManager[ListeningHead | None]:
        """Return a context in which machines find a listening head; it yields the head's entry for codes.

        None: no other machine reaches it.
        """


Balance = Callable[[RemoteExecutor, Mapping[str, Any], LoadedSize | None], Executor]
"""Returns an executor that moves layers between stages: of the model of a config.json, by what it takes, if known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Additions:
    """What is added; by default nothing."""

    admission: NodeAdmission | None = None
    """None: machines join by keys that were exchanged."""
    balance: Balance | None = None
    """None: stages keep the layers with which they begin."""
    launch: Launch | None = None
    """None: the server starts its nodes, or an operator does."""
    place: str = ""
    """Where layers are computed, for the user; empty: as `StageOptions.place` says."""


NOTHING = Additions()
