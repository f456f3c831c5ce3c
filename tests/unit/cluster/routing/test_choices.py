from __future__ import annotations

from collections.abc import Sequence

from parallax_core.cluster.routing.choices import list_choices
from parallax_core.contracts.policy import ArrivalView, ReplicaView

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
