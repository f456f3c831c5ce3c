from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.rebalancing.slowdown import MOST, SlowdownEstimator, SlowdownRules

SEEDS = st.integers(0, 2**32)
RULES = SlowdownRules()


@dataclass
class Bench:
    """An estimator, and a node whose steps are 20 ms with the noise of a busy machine."""

    seed: int = 0
    error: float = 1.0
    """How many times longer steps take than predicted, if nothing is wrong."""
    sizes: Callable[[float], int] = lambda now: 1
    """The tokens of a step by the time."""
    gap_s: float = 0.05
    now: float = 0.0
    estimator: SlowdownEstimator = field(default_factory=SlowdownEstimator)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def run(self, seconds: float, slowdown: float = 1.0) -> float | None:
        """Compute for so long; return after how many seconds a plan was due first, if one was."""
        begun, due = self.now, None
        while self.now < begun + seconds:
            self.now += self.random.uniform(0.5, 1.5) * self.gap_s
            noise = self.random.lognormvariate(0.0, 0.1)
            if self.random.random() < 0.1:
                noise *= 1 + self.random.paretovariate(1.1)  # without a mean worth the name
            measured = 0.02 * self.error * slowdown * noise
            if self.estimator.note(self.sizes(self.now), 0.02, measured, self.now) and due is None:
                due = self.now - begun
        return due


@given(SEEDS, st.floats(0.75, 1.3))
def test_noise_and_heavy_tails_are_no_slowdown(seed: int, error: float) -> None:
    bench = Bench(seed, error)
    assert bench.run(200.0) is None
    assert bench.estimator.factor == pytest.approx(error, rel=0.2)


@given(SEEDS, st.floats(1.5, 50.0), st.floats(0.0, 60.0))
def test_stutter_of_twenty_seconds_changes_nothing(seed: int, slowdown: float, before_s: float) -> None:
    bench = Bench(seed)
    assert bench.run(before_s) is None
    assert bench.run(20.0, slowdown) is None
    assert bench.run(60.0) is None


@given(SEEDS, st.floats(2.0, 50.0), st.floats(0.75, 1.3), st.floats(30.0, 200.0))
def test_node_that_becomes_twice_as_slow_is_known_within_27_seconds(
    seed: int, slowdown: float, error: float, before_s: float
) -> None:
    bench = Bench(seed, error)
    assert bench.run(before_s) is None
    due = bench.run(40.0, slowdown)
    assert due is not None
    assert 20.0 < due < 27.0
    assert bench.estimator.factor == pytest.approx(slowdown * error, rel=0.25)


@given(SEEDS, st.floats(0.3, 1.5))
def test_a_little_slower_changes_nothing(seed: int, gap_s: float) -> None:
    bench = Bench(seed, gap_s=gap_s)
    assert bench.run(120.0) is None
    assert bench.run(300.0, 1.2) is None


@given(SEEDS)
def test_rare_steps_take_longer_to_judge(seed: int) -> None:
    bench = Bench(seed, gap_s=8.0)
    assert bench.run(200.0) is None
    assert bench.run(20.0, 5.0) is None
    assert bench.run(200.0) is None
    assert bench.run(600.0, 5.0) is not None


@given(SEEDS, st.floats(2.0, 4.0), st.floats(30.0, 90.0))
def test_node_that_is_slow_again_and_again_moves_layers_ever_more_rarely(
    seed: int, slowdown: float, each_s: float
) -> None:
    bench = Bench(seed)
    bench.run(60.0)
    changes = [bench.run(each_s, slowdown if number % 2 else 1.0) for number in range(1, 21)]
    assert sum(change is not None for change in changes) <= 3


def test_error_of_the_prediction_is_found_also_where_speeds_vary() -> None:
    """Other programs use the machine: each second has a speed of its own."""
    random, estimator, now = Random(3), SlowdownEstimator(), 0.0
    for _ in range(100):
        speed = random.choice((0.2, 0.4, 0.6, 0.9))
        for _ in range(10):
            now += 0.1
            estimator.note(1, 0.02, 0.02 * speed, now)
    assert 0.3 < estimator.factor < 0.8


def test_changes_are_forgotten_after_a_calm_while() -> None:
    bench = Bench()
    bench.run(60.0)
    assert bench.run(30.0, 2.0) is not None
    assert bench.run(40.0) is None, "the next change takes twice as long"
    assert bench.run(40.0) is not None
    bench.run(2.5 * RULES.calm_s)
    assert bench.run(30.0, 2.0) is not None


@given(SEEDS, st.lists(st.floats(0.5, 1.8), min_size=9, max_size=9), st.floats(20.0, 100.0))
def test_busy_is_not_slow(seed: int, errors: list[float], each_s: float) -> None:
    """The load changes between one token and hundreds, and the prediction is wrong for each size in its own way."""
    estimator, random, now = SlowdownEstimator(), Random(seed), 0.0
    estimator.note(1, 0.02, 0.02, now)
    for _ in range(12):
        busiest, until = random.randint(1, 8), now + each_s
        while now < until:
            now += 0.05
            size = random.randint(0, busiest)
            measured = 0.02 * size * (errors[size] if size else 1.0) * random.lognormvariate(0, 0.1)
            assert not estimator.note(2**size, 0.02 * size, measured, now) or not estimator.factor > 2


@given(SEEDS)
def test_busier_and_slower_is_slow(seed: int) -> None:
    random = Random(seed)
    bench = Bench(seed, sizes=lambda now: 1 if now < 100 else random.choice((1, 1, 8, 40)))
    assert bench.run(100.0) is None
    assert bench.run(60.0, 2.5) is not None


def test_slow_node_without_steps_is_tried_again_and_then_more_rarely() -> None:
    bench = Bench()
    bench.run(60.0)
    assert bench.run(30.0, 3.0) is not None
    waits = []
    for _ in range(3):
        begun = bench.now
        while not bench.estimator.forget(bench.now):
            bench.now += 1.0
        waits.append(bench.now - begun)
        assert bench.estimator.factor == 1.0
        assert not bench.estimator.forget(bench.now + 1e9)
        assert bench.run(30.0, 3.0) is not None, "the first judgement after a while takes no longer than usual"
    assert waits == sorted(waits)
    assert 1.8 * waits[0] < waits[1] < 2.2 * waits[0]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_impossible_times_do_no_harm(seconds: float) -> None:
    estimator, now = SlowdownEstimator(), 0.0
    for _ in range(2000):
        now += 0.05
        estimator.note(1, 0.02, seconds, now)
        estimator.note(1, 0.0, seconds, now)
    assert 1 / MOST <= estimator.factor <= MOST


def test_memory_is_bounded() -> None:
    bench = Bench(gap_s=0.5)
    bench.run(5000.0)
    before = len(pickle.dumps(bench.estimator))
    bench.run(5000.0)
    assert len(pickle.dumps(bench.estimator)) < 1.2 * before
