from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.cluster.routing.choices import list_choices
from parallax_core.contracts.policy import ArrivalView, ReplicaView, RoutingPolicy
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import PrefixAffinity, RoundRobin

ARRIVAL = ArrivalView(number=0, num_prompt=4, max_output=4)
REPLICAS = [ReplicaView(rank=rank, pending_tokens=0, num_requests=0, cached_tokens=0) for rank in range(3)]


class Middle:
    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        assert arrival is ARRIVAL
        self.asked.append([replica.rank for replica in replicas])
        return replicas[len(replicas) // 2].rank


def test_every_replica_is_chosen_once_among_those_that_are_left() -> None:
    policy = Middle()
    assert list(list_choices(policy, ARRIVAL, REPLICAS)) == [1, 2, 0]
    assert policy.asked == [[0, 1, 2], [0, 2], [0]]


def test_policy_is_asked_again_only_after_a_refusal() -> None:
    policy = Middle()
    assert next(list_choices(policy, ARRIVAL, REPLICAS)) == 1
    assert policy.asked == [[0, 1, 2]]
    assert list(list_choices(policy, ARRIVAL, [])) == []


VIEWS = st.lists(
    st.builds(
        ReplicaView,
        rank=st.integers(0, 10**6),
        pending_tokens=st.integers(0, 10**6),
        num_requests=st.integers(0, 1000),
        cached_tokens=st.integers(0, 5000),
        pending_prompt=st.integers(0, 10**5),
        token_s=st.none() | st.floats(0, 100),
        prompt_token_s=st.none() | st.floats(0, 100),
        is_suspected=st.booleans(),
    ),
    max_size=20,
    unique_by=lambda view: view.rank,
)


@pytest.mark.parametrize(
    "policy", [LeastPendingTokens(), RoundRobin(), PrefixAffinity(), LeastFinishTime(choices=2), LeastFinishTime()]
)
@given(views=VIEWS, number=st.integers(0, 10**9))
def test_every_replica_is_a_path_and_suspected_ones_come_last(
    policy: RoutingPolicy, views: list[ReplicaView], number: int
) -> None:
    ranks = list(list_choices(policy, ArrivalView(number=number, num_prompt=100, max_output=100), views))
    assert sorted(ranks) == sorted(view.rank for view in views)
    suspected = {view.rank for view in views if view.is_suspected}
    assert {*ranks[: len(ranks) - len(suspected)]}.isdisjoint(suspected)
