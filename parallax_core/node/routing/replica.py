"""One replica behind a router, and what its requests may still cost it."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.contracts.engine import Admitting, Delta, Engine, Health
from parallax_core.contracts.policy import ArrivalView, ReplicaView


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaState:
    """What an operator sees of a replica."""

    rank: int
    health: Health
    is_drained: bool
    """Whether it gets no new requests because somebody said so."""
    pending_tokens: int
    """Tokens it has yet to compute: prompts it has not answered, and what their answers may still hold."""
    num_requests: int
    """Requests it has not finished."""


@dataclass(slots=True)
class Replica:
    """An engine, and the router's account of it."""

    rank: int
    engine: Engine
    is_drained: bool = False
    pending_tokens: int = 0
    num_requests: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it may get requests."""
        return not self.is_drained and self.engine.health().state == "ready"

    def check_room(self) -> None:
        """Raise Unavailable if its engine says that it would not take a request now."""
        if isinstance(self.engine, Admitting):
            self.engine.check_room()

    def view(self, cached_tokens: int) -> ReplicaView:
        """Return what a policy gets to see."""
        return ReplicaView(
            rank=self.rank,
            pending_tokens=self.pending_tokens,
            num_requests=self.num_requests,
            cached_tokens=cached_tokens,
        )

    def describe(self) -> ReplicaState:
        """Return what an operator gets to see."""
        return ReplicaState(
            rank=self.rank,
            health=self.engine.health(),
            is_drained=self.is_drained,
            pending_tokens=self.pending_tokens,
            num_requests=self.num_requests,
        )


class ReplicaUse:
    """What one request may still cost its replica: its prompt until there is an answer, and what answers may hold."""

    def __init__(self, replica: Replica, arrival: ArrivalView, num_answers: int) -> None:
        self._replica = replica
        self._prompt = arrival.num_prompt
        self._answers = [arrival.max_output // num_answers] * num_answers
        self._is_held = True
        replica.pending_tokens += self._prompt + sum(self._answers)
        replica.num_requests += 1

    def note(self, delta: Delta) -> None:
        """Take off what a delta shows to be done; the one with the finish ends the claim."""
        if delta.finish is not None:
            self.release()
        elif self._is_held:
            rest = self._answers[delta.index]
            done = rest if delta.ended is not None else min(rest, len(delta.tokens))
            self._answers[delta.index] = rest - done
            self._replica.pending_tokens -= self._prompt + done
            self._prompt = 0

    def release(self) -> None:
        """Give back what is left; harmless when that was done before."""
        if self._is_held:
            self._is_held = False
            self._replica.pending_tokens -= self._prompt + sum(self._answers)
            self._replica.num_requests -= 1
