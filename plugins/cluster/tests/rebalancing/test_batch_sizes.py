from __future__ import annotations

from math import log

import pytest

from parallax_cluster.rebalancing.batch_sizes import ENOUGH, BatchSizes


def conclude(sizes: BatchSizes, values: dict[int, float], level: float | None = None) -> float | None:
    """End an interval with a few steps of each size."""
    for num_tokens, value in values.items():
        for _ in range(3):
            sizes.note(num_tokens, value)
    return sizes.conclude(level)


def test_first_size_counts_as_right() -> None:
    sizes = BatchSizes()
    assert conclude(sizes, {1: 0.3}) == 0.3
    assert conclude(sizes, {}) is None


def test_error_of_a_new_size_is_taken_out_once_it_is_known() -> None:
    sizes = BatchSizes()
    conclude(sizes, {1: 0.0})
    for _ in range(ENOUGH):
        assert conclude(sizes, {1: 0.0, 64: 0.7}) == 0.0
    assert conclude(sizes, {64: 0.7}) == pytest.approx(0.0)
    assert conclude(sizes, {64: 1.4}) == pytest.approx(0.7)


def test_size_that_comes_alone_is_compared_with_the_last_intervals() -> None:
    sizes = BatchSizes()
    conclude(sizes, {1: 0.2})
    for _ in range(ENOUGH):
        assert conclude(sizes, {64: 0.7}, level=0.2) is None
    assert conclude(sizes, {100: 0.7}) == pytest.approx(0.2), "as many binary digits"


def test_node_that_becomes_slow_while_a_size_is_new_is_slow_at_all_sizes() -> None:
    sizes = BatchSizes()
    conclude(sizes, {1: 0.0})
    for _ in range(ENOUGH):
        conclude(sizes, {1: 1.0, 64: 1.0}, level=0.0)
    assert conclude(sizes, {64: 1.0}) == pytest.approx(1.0)


def test_error_of_a_size_is_bounded() -> None:
    sizes = BatchSizes()
    conclude(sizes, {1: 0.0})
    for _ in range(ENOUGH):
        conclude(sizes, {1: 0.0, 64: log(50.0)})
    assert conclude(sizes, {64: log(50.0)}) == pytest.approx(log(50.0 / 3))


def test_interval_can_be_left_out() -> None:
    sizes = BatchSizes()
    sizes.note(1, 5.0)
    sizes.clear()
    assert sizes.conclude(None) is None


def test_so_many_steps_of_a_size_count_in_an_interval() -> None:
    sizes = BatchSizes()
    for value in range(40):
        sizes.note(1, float(value))
    assert sizes.conclude(None) == 15.5, "the median of the first 32"


def test_error_of_a_size_is_known_after_five_intervals() -> None:
    sizes = BatchSizes()
    conclude(sizes, {1: 0.0})
    for number in range(1, 6):
        assert conclude(sizes, {64: 0.7}, level=0.0) is None, number
    assert conclude(sizes, {64: 0.7}) == pytest.approx(0.0)
