"""Holds one replica of a router, and counts the load of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.cluster.routing.load import ReplicaLoad
from parallax_core.contracts.engine import Admitting, Engine, Request, Resumable
from parallax_core.contracts.policy import ReplicaView


@dataclass(slots=True)
class Replica:
    """An engine, and the router's count of its load."""

    rank: int
    engine: Engine
    is_drained: bool = False
    load: ReplicaLoad = field(init=False)
    suspected_until: float = 0.0
    """It refused a request or was lost a moment ago; the time of the router's clock at which that is forgotten."""

    def __post_init__(self) -> None:
        self.load = ReplicaLoad(self.rank)

    @property
    def is_open(self) -> bool:
        """Whether it may get new requests."""
        return not self.is_drained and self.engine.health().state == "ready"

    def takes(self, request: Request) -> bool:
        """Whether it may get this request, which another replica may have begun to answer."""
        return self.is_open and (not request.delivered or self.can_resume(request))

    def can_resume(self, request: Request) -> bool:
        """Whether its engine continues the answers to a request exactly."""
        return isinstance(self.engine, Resumable) and self.engine.can_resume(request)

    def check_room(self) -> None:
        """Raise Unavailable if its engine would refuse a request now."""
        if isinstance(self.engine, Admitting):
            self.engine.check_room()

    def view(self, cached_tokens: int, now: float) -> ReplicaView:
        """Return the replica's view for a routing policy."""
        return self.load.view(cached_tokens, is_suspected=now < self.suspected_until)
