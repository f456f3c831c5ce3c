"""Around policies: one that raises or answers nonsense is reported once, and its task is done without it.

A policy may be anybody's, and is asked while the engine plans a step or takes a request in: what it does wrong must
be an error of its own, and not of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from parallax_core.base.ids import RequestId
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.policy import (
    ArrivalView,
    BatchingPolicy,
    Holder,
    PreemptionPolicy,
    QueueView,
    ReplicaView,
    RoutingPolicy,
)

P = TypeVar("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class PolicyGuard(Generic[P]):
    """A policy, and whether it was reported already."""

    def __init__(self, policy: P) -> None:
        self.policy = policy
        self._reported = False

    def _ask(self, question: Callable[[], T], check: Callable[[T], bool], instead: Callable[[], T]) -> T:
        """Return the policy's answer if there is one that passes ``check``, else ``instead``."""
        try:
            answer = question()
            if check(answer):
                return answer
            reason = f"answered {answer!r}"
        except Exception as error:  # noqa: BLE001 -- a policy may raise anything, and must not end the engine
            reason = f"raised {type(error).__name__}: {error}"
        if not self._reported:
            self._reported = True
            logger.error("policy misbehaves, and is not followed policy=%r: it %s", self.policy, reason)
        return instead()


class BatchingGuard(PolicyGuard[BatchingPolicy]):
    """Begins a step at once where the policy gives no number of seconds."""

    def wait_s(self, queue: QueueView) -> float:
        """Return the policy's answer, or 0."""
        return self._ask(lambda: self.policy.wait_s(queue), _is_wait, lambda: 0.0)


class PreemptionGuard(PolicyGuard[PreemptionPolicy]):
    """Lets the least urgent give way where the policy names nobody there is."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return the policy's answer, or that of `LowestPriority`."""
        if not holders:
            return None
        allowed = {None, *(holder.id for holder in holders)}
        return self._ask(
            lambda: self.policy.choose(holders), allowed.__contains__, lambda: LowestPriority().choose(holders)
        )


class RoutingGuard(PolicyGuard[RoutingPolicy]):
    """Takes the least loaded replica where the policy names none that is offered."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the policy's answer, or that of `LeastPendingTokens`."""
        offered = {replica.rank for replica in replicas}
        return self._ask(
            lambda: self.policy.choose(arrival, replicas),
            offered.__contains__,
            lambda: LeastPendingTokens().choose(arrival, replicas),
        )


def _is_wait(answer: object) -> bool:
    return isinstance(answer, int | float) and answer >= 0
