from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parallax_core.api import ArrivalView, ReplicaView
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.policy.guard import RoutingGuard
from parallax_policies.routing import PrefixAffinity, RoundRobin


def replica(rank: int, pending: int, cached: int = 0) -> ReplicaView:
    return ReplicaView(rank=rank, pending_tokens=pending, num_requests=0, cached_tokens=cached)


def arrival(number: int = 0) -> ArrivalView:
    return ArrivalView(number=number, num_prompt=100, max_output=100)


def test_least_pending_tokens_takes_the_least_and_of_equals_the_first() -> None:
    policy = LeastPendingTokens()
    assert policy.choose(arrival(), [replica(0, 5), replica(1, 3), replica(2, 3)]) == 1
    assert policy.choose(arrival(), [replica(2, 5, cached=99)]) == 2


def test_round_robin_takes_turns_among_those_there_are() -> None:
    there = [replica(0, 9), replica(2, 0), replica(3, 0)]
    assert [RoundRobin().choose(arrival(number), there) for number in range(5)] == [0, 2, 3, 0, 2]


@pytest.mark.parametrize(
    ("replicas", "rank"),
    [
        ([replica(0, 0), replica(1, 100, cached=64)], 1),  # it knows most, and has not too much to do
        ([replica(0, 0), replica(1, 101, cached=64)], 0),  # too much to do
        ([replica(0, 0), replica(1, 0, cached=32), replica(2, 50, cached=64)], 2),
        ([replica(0, 7, cached=64), replica(1, 5, cached=64)], 1),  # equals: the less loaded
        ([replica(0, 7), replica(1, 5), replica(2, 5)], 1),  # nobody knows anything
    ],
)
def test_prefix_affinity_weighs_what_is_known_against_load(replicas: list[ReplicaView], rank: int) -> None:
    assert PrefixAffinity(slack_tokens=100).choose(arrival(), replicas) == rank


def test_prefix_affinity_refuses_a_slack_below_nothing() -> None:
    with pytest.raises(ValueError, match="slack_tokens is -1"):
        PrefixAffinity(slack_tokens=-1)


class Answering:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [1, -1, None, "0", [], ValueError("boom")], ids=repr)
def test_policy_that_takes_what_is_not_offered_is_reported_once_and_not_followed(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = RoutingGuard(Answering(answer))
    offered = [replica(0, 9), replica(2, 1)]
    assert [guard.choose(arrival(), offered), guard.choose(arrival(), offered)] == [2, 2]
    assert len(caplog.records) == 1
