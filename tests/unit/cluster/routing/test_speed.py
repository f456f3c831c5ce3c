from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.cluster.routing.speed import ReplicaSpeed


def test_nothing_is_predicted_before_anything_was_measured() -> None:
    assert ReplicaSpeed().predict_token_s(3) is None
    assert ReplicaSpeed().prompt_token_s is None


def test_line_over_the_number_of_requests_is_found() -> None:
    speed, random = ReplicaSpeed(), Random(1)
    for _ in range(1000):
        num = random.randint(1, 32)
        speed.note_tokens(2, 2 * (0.02 + 0.001 * num), num)
    assert speed.predict_token_s(1) == pytest.approx(0.021, rel=1e-3)
    assert speed.predict_token_s(64) == pytest.approx(0.084, rel=1e-3)


def test_replica_that_becomes_slower_is_noticed_within_some_hundred_tokens() -> None:
    speed = ReplicaSpeed()
    for _ in range(500):
        speed.note_tokens(1, 0.01, 4)
    for _ in range(200):
        speed.note_tokens(1, 0.05, 4)
    assert speed.predict_token_s(4) == pytest.approx(0.05, rel=0.05)


def test_prompt_speed_is_an_average() -> None:
    speed = ReplicaSpeed()
    speed.note_prompt(100, 1.0)
    assert speed.prompt_token_s == pytest.approx(0.01)
    speed.note_prompt(100, 2.0)
    assert speed.prompt_token_s == pytest.approx(0.011)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1e3), st.integers(1, 500)), min_size=1), st.integers(1, 1000))
def test_prediction_is_never_negative_nor_falls_with_more_requests(
    noted: list[tuple[int, float, int]], num: int
) -> None:
    speed = ReplicaSpeed()
    for each in noted:
        speed.note_tokens(*each)
    one, more = speed.predict_token_s(num), speed.predict_token_s(num + 1)
    assert one is not None
    assert more is not None
    assert 0 <= one <= more
