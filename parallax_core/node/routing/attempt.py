"""Describes a request to the replicas, before and after it is moved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from parallax_core.base.errors import RequestTimeout
from parallax_core.contracts.engine import Finish, Request
from parallax_core.contracts.policy import ArrivalView
from parallax_core.engine.sequence import AGEING_S
from parallax_core.node.routing.failover import RequestProgress

MOST_MOVES = 3
"""The largest number of times in a row that a request is moved without a new token."""


@dataclass(kw_only=True, slots=True)
class RoutingAttempt:
    """A request that is being routed, with the replicas it was sent to and its tokens so far."""

    request: Request
    arrival: ArrivalView
    keys: Sequence[int]
    progress: RequestProgress
    tried: set[int] = field(default_factory=set)
    """The ranks of the replicas it was sent to and that were not repaired since."""
    num_moves: int = 0
    """Moves in a row without a new token."""
    num_tokens: int = 0
    """The tokens it had at the last move."""
    is_over: bool = False
    """Whether its stream has ended or was closed."""

    def may_move(self) -> bool:
        """Count a move; return whether the request may be moved again."""
        if (num_tokens := self.progress.num_tokens) > self.num_tokens:
            self.num_tokens, self.num_moves = num_tokens, 0
        self.num_moves += 1
        return self.num_moves <= MOST_MOVES

    @property
    def rank(self) -> tuple[float, int]:
        """Its urgency, then its arrival; lower is moved first."""
        since = self.progress.timeline.arrived - self.request.waited_s
        return self.request.priority + since / AGEING_S, self.arrival.number

    def make_request(self, now: float) -> Request:
        """Return the request as another replica gets it: with the time it has waited, and the tokens it has.

        Raises:
            RequestTimeout: if its timeout has passed.
        """
        request, progress = self.request, self.progress
        waited_s = request.waited_s + now - progress.timeline.arrived
        if request.timeout_s is not None and waited_s >= request.timeout_s:
            raise RequestTimeout(f"timed out after {request.timeout_s:g} seconds")
        delivered = tuple(map(tuple, progress.delivered)) if progress.num_tokens else ()
        ended = frozenset(progress.ended)
        return dataclasses.replace(request, waited_s=waited_s, delivered=delivered, ended=ended)

    def view(self, request: Request) -> ArrivalView:
        """Return what a policy sees of the request: tokens that were delivered are computed again as a prompt is."""
        num_tokens = sum(map(len, request.delivered))
        if not num_tokens:
            return self.arrival
        num_prompt, max_output = self.arrival.num_prompt + num_tokens, max(0, self.arrival.max_output - num_tokens)
        return dataclasses.replace(self.arrival, num_prompt=num_prompt, max_output=max_output)

    def time_out(self, message: str) -> Finish:
        """Return the finish of a request whose time is over."""
        num_prompt, num_tokens = len(self.request.prompt), self.progress.num_tokens
        return Finish(reason="timeout", prompt_tokens=num_prompt, output_tokens=num_tokens, message=message)
