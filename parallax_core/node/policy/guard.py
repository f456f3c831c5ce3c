"""Guards against faulty policies: reports an invalid answer once, and decides by a default.

A policy may come from any plugin, and is called while the engine plans a step or accepts a request: its faults must not
become errors of requests.
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
    """Calls a policy and replaces its invalid answers; it reports the first one."""

    def __init__(self, policy: P) -> None:
        self.policy = policy
        self._reported = False

    def _call(self, decide: Callable[[], T], is_valid: Callable[[T], bool], default: Callable[[], T]) -> T:
        """Return the policy's answer if it is valid, else that of ``default``."""
        try:
            answer = decide()
            if is_valid(answer):
                return answer
            reason = f"answered {answer!r}"
        except Exception as error:  # noqa: BLE001 -- a policy may raise anything, and must not end the engine
            reason = f"raised {type(error).__name__}: {error}"
        if not self._reported:
            self._reported = True
            logger.error("policy is faulty, a default decides policy=%r: it %s", self.policy, reason)
        return default()


class BatchingGuard(PolicyGuard[BatchingPolicy]):
    """Begins a step at once if the policy returns no valid number of seconds."""

    def wait_s(self, queue: QueueView) -> float:
        """Return the policy's answer, or 0."""
        return self._call(lambda: self.policy.wait_s(queue), _is_wait, lambda: 0.0)


class PreemptionGuard(PolicyGuard[PreemptionPolicy]):
    """Preempts the request of lowest priority if the policy names no holder of pages."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        """Return the policy's answer, or that of `LowestPriority`."""
        if not holders:
            return None
        allowed = {None, *(holder.id for holder in holders)}
        return self._call(
            lambda: self.policy.choose(holders), allowed.__contains__, lambda: LowestPriority().choose(holders)
        )


class RoutingGuard(PolicyGuard[RoutingPolicy]):
    """Takes the least loaded replica if the policy names none of those offered."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the policy's answer, or that of `LeastPendingTokens`."""
        offered = {replica.rank for replica in replicas}
        return self._call(
            lambda: self.policy.choose(arrival, replicas),
            offered.__contains__,
            lambda: LeastPendingTokens().choose(arrival, replicas),
        )


def _is_wait(answer: object) -> bool:
    return isinstance(answer, int | float) and answer >= 0
