"""Measures the speed of a device's matrix products: of one row (bandwidth) and of many (FLOPs)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

MAKING, READING = 0.5, 0.25
"""The shares of the time for making matrices and for products of one row; products of many rows have the rest."""
MOST_PASSES = 20
FEWEST_PASSES = 3


class Products(Protocol):
    """The matrices of a benchmark, all of one shape, as a backend keeps the weights of layers."""

    num_matrices: int
    """Together larger than the caches of the device, where memory allows."""
    prefill_rows: int
    """Rows of a product that is limited by computing."""

    def add_matrix(self) -> tuple[int, int]:
        """Make one more matrix; return the numbers in it, and its bytes."""

    def multiply(self, rows: int, num_matrices: int) -> None:
        """Multiply ``rows`` rows by each of the first matrices, and wait for the results."""


class ProductSpeed(NamedTuple):
    """The speed of products."""

    flops: float
    """FLOPs per second, with many rows."""
    bandwidth: float
    """Bytes of matrices per second, with one row."""


def measure_products(
    products: Products, limit_s: float, clock: Callable[[], float] = time.perf_counter
) -> ProductSpeed:
    """Return the median speed of products in about ``limit_s`` seconds; where a device is slow, with fewer matrices.

    Args:
        products: without matrices so far.
        limit_s: the time for all of it.
        clock: returns seconds.
    """
    begun = clock()
    numbers, num_bytes = products.add_matrix()
    made = 1
    while made < products.num_matrices and clock() - begun < MAKING * limit_s:
        products.add_matrix()
        made += 1
    read_s = _time_passes(lambda: products.multiply(1, made), READING * limit_s, clock)
    rows = products.prefill_rows
    compute_s = _time_passes(lambda: products.multiply(rows, 1), limit_s - (clock() - begun), clock)
    return ProductSpeed(2 * rows * numbers / compute_s, made * num_bytes / read_s)


def _time_passes(run: Callable[[], None], limit_s: float, clock: Callable[[], float]) -> float:
    """Return the median seconds of a pass; the first pass, which may compile kernels, does not count."""
    run()
    end, seconds = clock() + limit_s, list[float]()
    while len(seconds) < FEWEST_PASSES or (len(seconds) < MOST_PASSES and clock() < end):
        begun = clock()
        run()
        seconds.append(clock() - begun)
    return max(statistics.median(seconds), 1e-9)
