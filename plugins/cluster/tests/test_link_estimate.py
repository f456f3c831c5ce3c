from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.link_estimate import KEPT, LinkEstimate, LinkSample

TIMES = st.floats(allow_nan=True, allow_infinity=True)


def estimate(*round_trips: float) -> LinkEstimate:
    found = LinkEstimate()
    for each in round_trips:
        found = found.add(LinkSample(each))
    return found


def test_nothing_is_known_before_the_first_sample() -> None:
    assert (LinkEstimate().round_trip_s, LinkEstimate().bandwidth) == (None, None)


def test_stutter_changes_nothing_and_a_lasting_change_counts() -> None:
    calm = estimate(*[0.02] * KEPT)
    for _ in range(KEPT // 2):
        calm = calm.add(LinkSample(1.5))
    assert calm.round_trip_s == 0.02
    for _ in range(KEPT):
        calm = calm.add(LinkSample(0.05))
    assert calm.round_trip_s == 0.05


def test_bandwidth_is_that_of_the_bytes_beyond_a_small_message() -> None:
    found = LinkEstimate().add(LinkSample(0.02, 0.12, 10**6))
    assert found.bandwidth == pytest.approx(10**7)
    assert found.add(LinkSample(0.02, 0.01, 10**6)) == LinkEstimate((0.02, 0.02), found.bandwidths)


def test_bandwidth_is_measured_first_and_then_now_and_then() -> None:
    found, measured = LinkEstimate(), []
    for number in range(8):
        if found.needs_bandwidth(4):
            measured.append(number)
            found = found.add(LinkSample(0.01, 0.02, 100))
        else:
            found = found.add(LinkSample(0.01))
    assert measured == [0, 4]


@given(st.lists(st.tuples(TIMES, TIMES, st.integers(-1, 2**40))))
def test_estimates_are_finite_and_bounded(samples: list[tuple[float, float, int]]) -> None:
    found = LinkEstimate()
    for sample in samples:
        found = found.add(LinkSample(*sample))
    assert len(found.round_trips) <= KEPT
    assert found.round_trip_s is None or (math.isfinite(found.round_trip_s) and found.round_trip_s >= 0)
    assert found.bandwidth is None or (math.isfinite(found.bandwidth) and found.bandwidth > 0)
