"""Holds one replica of a router, and counts the load of its requests."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.contracts.engine import Admitting, Delta, Engine, Request, Resumable
from parallax_core.contracts.policy import ArrivalView, ReplicaView


@dataclass(slots=True)
class Replica:
    """An engine, and the router's count of its load."""

    rank: int
    engine: Engine
    is_drained: bool = False
    pending_tokens: int = 0
    num_requests: int = 0

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

    def view(self, cached_tokens: int) -> ReplicaView:
        """Return the replica's view for a routing policy."""
        return ReplicaView(
            rank=self.rank,
            pending_tokens=self.pending_tokens,
            num_requests=self.num_requests,
            cached_tokens=cached_tokens,
        )


class ReplicaUse:
    """The load of one request on its replica: its prompt until an answer begins, and the rest of its answers."""

    def __init__(self, replica: Replica, arrival: ArrivalView, num_answers: int) -> None:
        self._replica = replica
        self._prompt = arrival.num_prompt
        self._answers = [arrival.max_output // num_answers] * num_answers
        self._is_held = True
        replica.pending_tokens += self._prompt + sum(self._answers)
        replica.num_requests += 1

    def note(self, delta: Delta) -> None:
        """Subtract the tokens that a delta shows to be done; the delta with the finish releases the rest."""
        if delta.finish is not None:
            self.release()
        elif self._is_held:
            rest = self._answers[delta.index]
            done = rest if delta.ended is not None else min(rest, len(delta.tokens))
            self._answers[delta.index] = rest - done
            self._replica.pending_tokens -= self._prompt + done
            self._prompt = 0

    def release(self) -> None:
        """Subtract the rest of the load. Idempotent."""
        if self._is_held:
            self._is_held = False
            self._replica.pending_tokens -= self._prompt + sum(self._answers)
            self._replica.num_requests -= 1
