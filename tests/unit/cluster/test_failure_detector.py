"""A peer is lost when it is silent for longer than it ever was of late, and not before."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.cluster.failure_detector import (
    MARGIN,
    MIN_INTERVALS,
    MIN_TIMEOUT_S,
    MOST_UNWATCHED_S,
    WINDOW_S,
    FailureDetector,
)

CEILING_S = 2.5
CHECK_S = 0.05
ROUNDING_S = 1e-6


class Observer:
    """A detector, a clock, and whoever looks at the detector every `CHECK_S`."""

    def __init__(self, ceiling_s: float = CEILING_S) -> None:
        self.now = 100.0
        self.detector = FailureDetector(self.now, ceiling_s)

    def wait(self, seconds: float) -> bool:
        """Let time pass; return whether the peer was ever taken for lost."""
        until, is_lost = self.now + seconds, False
        while self.now < until:
            self.now = min(until, self.now + CHECK_S)
            is_lost |= self.detector.is_lost(self.now)
        return is_lost

    def beat(self, intervals: list[float]) -> bool:
        """Hear a heartbeat after each interval; return whether the peer was ever taken for lost."""
        is_lost = False
        for interval in intervals:
            is_lost |= self.wait(interval)
            self.detector.hear(self.now)
        return is_lost

    def notice_s(self) -> float:
        """Return the seconds of silence until the peer is taken for lost."""
        begun = self.now
        while not self.wait(CHECK_S):
            assert self.now < begun + 100, "it is never noticed"
        return self.now - begun


def list_recent(measured: list[float]) -> list[float]:
    """Return the intervals that must still count: those of the last `WINDOW_S`."""
    ages = accumulate(reversed(measured))
    return [each for each, age in zip(reversed(measured), ages, strict=True) if age <= WINDOW_S]


intervals = st.lists(st.floats(0.0, CEILING_S), min_size=MIN_INTERVALS, max_size=40)


@given(intervals, st.data())
def test_peer_within_the_margin_of_what_was_measured_is_never_lost(measured: list[float], data: st.DataObject) -> None:
    observer = Observer()
    observer.beat(measured)
    bound = min(CEILING_S, max(MIN_TIMEOUT_S, MARGIN * max(list_recent(measured))))
    assert not observer.wait(data.draw(st.floats(0.0, bound)) - ROUNDING_S)


@given(st.lists(st.floats(0.0, MIN_TIMEOUT_S), max_size=60))
def test_peer_that_is_never_silent_for_the_least_timeout_is_never_lost(measured: list[float]) -> None:
    assert not Observer().beat([each - ROUNDING_S for each in measured])


@given(st.lists(st.floats(0.0, 10.0), max_size=40), st.floats(0.05, 10.0))
def test_silent_peer_is_always_lost_within_the_ceiling(measured: list[float], ceiling_s: float) -> None:
    observer = Observer(ceiling_s)
    observer.beat(measured)
    assert observer.notice_s() <= ceiling_s + 2 * CHECK_S


@given(intervals, intervals)
def test_longer_intervals_never_shorten_the_timeout(shorter: list[float], extra: list[float]) -> None:
    calm, rough = Observer(), Observer()
    calm.beat(shorter)
    rough.beat([each + more for each, more in zip(shorter, extra, strict=False)] + shorter[len(extra) :])
    if rough.now - 100 < WINDOW_S:  # both count all their intervals
        assert calm.detector.timeout_s <= rough.detector.timeout_s + ROUNDING_S


@given(intervals)
def test_peer_stays_lost_until_it_is_heard(measured: list[float]) -> None:
    observer = Observer()
    observer.beat(measured)
    observer.notice_s()
    for _ in range(100):
        assert observer.wait(CHECK_S)
    observer.detector.hear(observer.now)
    assert not observer.detector.is_lost(observer.now)


def test_regular_heartbeats_are_missed_within_a_second() -> None:
    observer = Observer()
    observer.beat([0.1] * 50)
    assert observer.detector.timeout_s == MIN_TIMEOUT_S
    assert observer.notice_s() == pytest.approx(MIN_TIMEOUT_S, abs=2 * CHECK_S)


def test_timeout_adapts_to_stalls_and_forgets_them() -> None:
    observer = Observer()
    observer.beat([0.1] * 50 + [0.7] + [0.1] * 50)
    assert observer.detector.timeout_s == pytest.approx(2.1)
    assert not observer.wait(2.0)
    observer.detector.hear(observer.now)
    assert observer.detector.timeout_s == CEILING_S
    observer.beat([0.1] * round(20 * WINDOW_S))
    assert observer.detector.timeout_s == MIN_TIMEOUT_S


def test_peer_that_was_never_measured_has_the_whole_ceiling() -> None:
    observer = Observer()
    observer.beat([0.1] * (MIN_INTERVALS - 1))
    assert observer.notice_s() == pytest.approx(CEILING_S, abs=2 * CHECK_S)


def test_pause_of_the_observer_is_not_the_silence_of_its_peer() -> None:
    observer = Observer()
    observer.beat([0.1] * 50)
    observer.now += 60.0
    assert not observer.detector.is_lost(observer.now)
    assert observer.detector.silence_s == 0
    for _ in range(100):
        observer.now += MOST_UNWATCHED_S + ROUNDING_S
        assert not observer.detector.is_lost(observer.now)
    observer.detector.hear(observer.now)
    assert observer.detector.timeout_s == MIN_TIMEOUT_S


def test_ceiling_below_the_least_timeout_is_the_timeout() -> None:
    observer = Observer(0.3)
    observer.beat([0.1] * 50)
    assert observer.detector.timeout_s == 0.3
