from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import ArrivalView, ReplicaView
from parallax_policies.least_finish import LeastFinishTime

FAST_S, SLOW_S = 0.01, 0.1


def replica(rank: int, token_s: float | None = FAST_S, cached: int = 0) -> ReplicaView:
    return ReplicaView(
        rank=rank,
        pending_tokens=0,
        num_requests=0,
        cached_tokens=cached,
        token_s=token_s,
        prompt_token_s=None if token_s is None else token_s / 10,
    )


def arrival(number: int = 0, num_prompt: int = 100) -> ArrivalView:
    return ArrivalView(number=number, num_prompt=num_prompt, max_output=100)


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
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda view: view.rank,
)


@given(VIEWS, st.integers(0, 10**9), st.integers(0, 30))
def test_there_is_a_path_as_long_as_there_is_a_replica(views: list[ReplicaView], number: int, choices: int) -> None:
    chosen = LeastFinishTime(choices=choices).choose(arrival(number), views)
    assert chosen in {view.rank for view in views}


@given(VIEWS, st.integers(0, 10**9))
def test_no_replica_finishes_before_the_chosen_of_all(views: list[ReplicaView], number: int) -> None:
    known = [view for view in views if view.token_s is not None and view.prompt_token_s is not None]
    if not known:
        return
    chosen = LeastFinishTime(choices=0).choose(arrival(number), known)

    def finish(view: ReplicaView) -> float:
        own = max(100 - view.cached_tokens, 1)
        return (view.pending_prompt + own) * (view.prompt_token_s or 0) + 100 * (view.token_s or 0)

    assert finish(next(view for view in known if view.rank == chosen)) == min(map(finish, known))


def test_fast_replica_is_preferred_and_a_cached_prompt_counts() -> None:
    policy = LeastFinishTime()
    assert policy.choose(arrival(), [replica(0, SLOW_S), replica(1), replica(2)]) == 1
    assert policy.choose(arrival(), [replica(0, SLOW_S), replica(1), replica(2, cached=64)]) == 2
    assert policy.choose(arrival(), [replica(0, SLOW_S, cached=64), replica(1)]) == 1


def test_replica_that_nobody_measured_counts_as_fast_as_the_fastest() -> None:
    assert LeastFinishTime().choose(arrival(), [replica(0), replica(1, None)]) == 1


def test_cached_prompt_is_found_among_many_replicas() -> None:
    many = [replica(rank) for rank in range(100)]
    many[77] = replica(77, cached=4096)
    assert {LeastFinishTime(choices=2).choose(arrival(number, 5000), many) for number in range(50)} == {77}


def test_requests_are_spread_over_equals() -> None:
    many = [replica(rank) for rank in range(100)]
    chosen = [LeastFinishTime(choices=2).choose(arrival(number), many) for number in range(1000)]
    assert len(set(chosen)) > 90


def test_negative_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="choices is -1"):
        LeastFinishTime(choices=-1)


def test_policy_does_not_mind_how_the_views_come() -> None:
    views: Sequence[ReplicaView] = [replica(rank) for rank in range(9)]
    policy = LeastFinishTime(choices=3)
    assert policy.choose(arrival(5), views) == policy.choose(arrival(5), tuple(views))
