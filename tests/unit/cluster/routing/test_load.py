from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import ArrivalView
from parallax_core.cluster.routing.load import ReplicaLoad, RequestLoad


def arrival(num_prompt: int = 10, max_output: int = 20) -> ArrivalView:
    return ArrivalView(number=0, num_prompt=num_prompt, max_output=max_output)


def test_load_falls_with_each_token_and_ends_with_the_request() -> None:
    load = ReplicaLoad(3)
    request = RequestLoad(load, arrival(), 1, now=0.0)
    assert (load.pending_tokens, load.pending_prompt, load.num_requests) == (30, 10, 1)
    request.note(0, 1, 1.0)
    assert (load.pending_tokens, load.pending_prompt) == (19, 0)
    request.release()
    request.release()
    assert (load.pending_tokens, load.pending_prompt, load.num_requests) == (0, 0, 0)


def test_speeds_are_measured_from_the_tokens() -> None:
    load = ReplicaLoad(0)
    request = RequestLoad(load, arrival(), 1, now=5.0)
    request.note(0, 1, 6.0)
    assert load.speed.prompt_token_s == pytest.approx(0.1)
    request.note(0, 2, 6.4)
    view = load.view(7, is_suspected=True)
    assert view.token_s == pytest.approx(0.2)
    assert (view.rank, view.cached_tokens, view.is_suspected) == (0, 7, True)


@pytest.mark.parametrize(("cached", "ahead"), [(0, 10), (4, 6), (9, 1), (10, 1), (12, 1)])
def test_prompt_that_is_cached_takes_the_time_of_the_rest_and_of_a_token_at_least(cached: int, ahead: int) -> None:
    load = ReplicaLoad(0)
    RequestLoad(load, arrival(), 1, now=0.0, cached=cached).note(0, 1, 3.0)
    assert load.speed.prompt_token_s == pytest.approx(3.0 / ahead)


def test_prompts_before_it_count_too() -> None:
    load = ReplicaLoad(0)
    RequestLoad(load, arrival(7), 1, now=0.0)
    RequestLoad(load, arrival(), 1, now=0.0, cached=4).note(0, 1, 26.0)
    assert load.speed.prompt_token_s == pytest.approx(2.0)
    assert (load.pending_tokens, load.pending_prompt, load.num_requests) == (27 + 19, 7, 2)


@pytest.mark.parametrize(("num_answers", "num_tokens"), [(1, 0), (2, 4), (2, 0)])
def test_speed_of_answers_is_that_of_one_that_goes_on(num_answers: int, num_tokens: int) -> None:
    """The times of several answers to one prompt are mixed up, and a note without tokens says nothing."""
    load = ReplicaLoad(0)
    request = RequestLoad(load, arrival(), num_answers, now=0.0)
    request.note(0, 1, 1.0)
    before = load.view(0).token_s
    request.note(0, num_tokens, 9.0)
    assert load.view(0).token_s == before


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(1, 3)), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=40),
)
def test_load_is_never_negative_and_nothing_stays(
    given: list[tuple[int, int, int]], notes: list[tuple[int, int, int, bool]]
) -> None:
    load = ReplicaLoad(0)
    requests = [(RequestLoad(load, arrival(prompt, output), n, now=0.0), n) for prompt, output, n in given]
    for at, (which, index, num_tokens, has_ended) in enumerate(notes):
        if which < len(requests) and index < requests[which][1]:
            requests[which][0].note(index, num_tokens, float(at), has_ended=has_ended)
            assert load.pending_tokens >= load.pending_prompt >= 0
    for request, _ in requests:
        request.release()
    assert (load.pending_tokens, load.pending_prompt, load.num_requests) == (0, 0, 0)
