from __future__ import annotations

import pytest

from parallax_stage_tools.products import MAKING, measure_products


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeProducts:
    """Matrices of 1000 numbers in 2000 bytes; reading one takes a time, and computing a row another."""

    num_matrices, prefill_rows = 8, 50

    def __init__(self, clock: Clock, make_s: float = 0.01, read_s: float = 0.001) -> None:
        self.clock, self.make_s, self.read_s = clock, make_s, read_s
        self.made = 0
        self.first = True

    def add_matrix(self) -> tuple[int, int]:
        self.clock.now += self.make_s
        self.made += 1
        return 1000, 2000

    def multiply(self, rows: int, num_matrices: int) -> None:
        assert num_matrices <= self.made
        self.clock.now += num_matrices * (self.read_s + (rows - 1) * 0.0001) + 10 * self.first
        self.first = False


def test_speeds_are_those_of_the_products() -> None:
    clock = Clock()
    speed = measure_products(FakeProducts(clock), 2.0, clock)
    assert speed.bandwidth == pytest.approx(2000 / 0.001)
    assert speed.flops == pytest.approx(2 * 50 * 1000 / (0.001 + 49 * 0.0001))


def test_slow_device_is_measured_with_fewer_matrices() -> None:
    clock = Clock()
    products = FakeProducts(clock, make_s=0.3)
    measure_products(products, 2.0, clock)
    assert products.made == pytest.approx(2.0 * MAKING / 0.3, abs=1)


def test_benchmark_ends_in_time() -> None:
    clock = Clock()
    products = FakeProducts(clock)
    products.first = False
    measure_products(products, 2.0, clock)
    assert clock.now <= 2.0
