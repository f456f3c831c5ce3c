"""Guards against faulty policies: reports an invalid answer once, and decides by a default.

A policy may come from any plugin, and is called while the engine plans a step or accepts a request: its faults must not
become errors of requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from parallax_core.base.ids import RequestId
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.builtin.scheduling import PriorityOrder
from parallax_core.contracts.policy import (
    ArrivalView,
    BatchingPolicy,
    Holder,
    PreemptionPolicy,
    PromptShare,
    QueueView,
    ReplicaView,
    RoutingPolicy,
    SchedulingPolicy,
    SchedulingView,
)

P = TypeVar("P")
T = TypeVar("T")

MOST_SHOWN = 200
"""The most characters of a fault that the log shows."""

logger = logging.getLogger(__name__)


class PolicyGuard(Generic[P]):
    """Calls a policy and replaces its invalid answers; it reports the first one."""

    def __init__(self, policy: P) -> None:
        self.policy = policy
        self.is_faulty = False
        """Whether it has given an invalid answer."""

    def _call(self, decide: Callable[[], T], is_valid: Callable[[T], bool], default: Callable[[], T]) -> T:
        """Return the policy's answer if it is valid, else that of ``default``."""
        try:
            answer = decide()
            if is_valid(answer):
                return answer
            reason = f"answered {answer!r}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 -- a policy may raise anything, and must not end the engine
            reason = _describe(error)
        self.report(reason)
        return default()

    def report(self, fault: str) -> None:
        """Log the first fault of the policy; ``fault``: what it does wrong."""
        if not self.is_faulty:
            self.is_faulty = True
            logger.error("policy is faulty, a default decides policy=%r: it %s", self.policy, fault[:MOST_SHOWN])


class BatchingGuard(PolicyGuard[BatchingPolicy]):
    """Begins a step at once if the policy returns no valid number of seconds."""

    def wait_s(self, queue: QueueView) -> float:
        """Return the policy's answer, or 0."""
        return self._call(lambda: self.policy.wait_s(queue), _is_wait, lambda: 0.0)


class SchedulingGuard(PolicyGuard[SchedulingPolicy]):
    """Serves prompts by rank if the policy's shares are not those of prompts in the view."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        """Return the policy's answer, or that of `PriorityOrder`."""
        return self._call(
            lambda: self.policy.order(view),
            lambda shares: _are_shares(shares, view),
            lambda: PriorityOrder().order(view),
        )


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


def _are_shares(answer: object, view: SchedulingView) -> bool:
    if type(answer) not in {list, tuple}:
        return False
    if not answer:
        return True
    remaining = {each.index: each.remaining for each in (*view.running, *view.waiting)}
    for share in cast("Sequence[object]", answer):
        match share:
            case (int(index), int(tokens)) if type(index) is type(tokens) is int and index in remaining:
                if not 0 <= tokens <= remaining.pop(index):
                    return False
            case _:
                return False
    return True


def _describe(error: BaseException) -> str:
    """Return what a policy raised; that too may raise when it is shown."""
    name = type(error).__name__
    try:
        return f"raised {name}: {error}"
    except Exception:  # noqa: BLE001 -- as above
        return f"raised {name}"


def _is_wait(answer: object) -> bool:
    return isinstance(answer, int | float) and answer >= 0
