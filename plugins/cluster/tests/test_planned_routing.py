from __future__ import annotations

from collections import Counter

import pytest

from parallax_cluster.planned_routing import PlannedRouting
from parallax_core.api import ArrivalView, ReplicaView
from parallax_core.builtin.routing import LeastPendingTokens

ARRIVAL = ArrivalView(number=0, num_prompt=100, max_output=100)


def route(counts: dict[int, float | None], num_requests: int) -> Counter[int]:
    """Return the requests of each pipeline after some arrived, of which none has ended."""
    routing, pending = PlannedRouting(LeastPendingTokens(), counts.get), dict.fromkeys(counts, 0)
    for _ in range(num_requests):
        views = [
            ReplicaView(rank=rank, pending_tokens=tokens, num_requests=tokens // 200, cached_tokens=0)
            for rank, tokens in pending.items()
        ]
        pending[routing.choose(ARRIVAL, views)] += 200
    return Counter({rank: tokens // 200 for rank, tokens in pending.items()})


@pytest.mark.parametrize("num_requests", [8, 80])
def test_requests_are_divided_as_planned(num_requests: int) -> None:
    assert route({0: 1, 1: 5, 2: 2}, num_requests) == {
        0: num_requests // 8,
        1: 5 * num_requests // 8,
        2: num_requests // 4,
    }


def test_single_request_goes_where_the_plan_sends_most() -> None:
    assert +route({0: 1, 1: 5, 2: 2}, 1) == {1: 1}


def test_pipelines_without_a_plan_or_all_alike_are_seen_as_they_are() -> None:
    assert route({0: None, 1: None}, 8) == {0: 4, 1: 4}
    assert route({0: 3, 1: 3}, 8) == {0: 4, 1: 4}
    assert route({0: None, 1: 2, 2: 6}, 12) == {0: 4, 1: 2, 2: 6}


def test_pipeline_that_the_plan_sends_nothing_is_used_when_others_have_more_than_planned() -> None:
    counts: dict[int, float | None] = {0: 8, 1: 0}
    assert route(counts, 8)[1] == 0
    assert route(counts, 34)[1] == 2
