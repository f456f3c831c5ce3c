from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.sampling.draw import MASK32, draw_key, gumbel, hash32, mix32
from parallax_core.testing.golden import read_golden

GOLDEN = read_golden()
LAST_BELOW_ONE = 2**32 - 129
"""The largest word whose v does not round to 1 in float32, where neighbours below 1 are 2**-24 apart."""
words = st.integers(0, MASK32)


def unmix32(value: int) -> int:
    """Undo mix32 step by step: multiply by the inverses, and unfold the shifts."""
    value ^= value >> 16
    value = value * pow(0x846CA68B, -1, 2**32) & MASK32
    value ^= value >> 15 ^ value >> 30
    value = value * pow(0x7FEB352D, -1, 2**32) & MASK32
    return value ^ value >> 16


@pytest.mark.parametrize(
    "case", GOLDEN["hashes"], ids=lambda case: f"{case['seed']}-{case['choice']}-{case['position']}"
)
def test_keys_hashes_and_noise_are_the_golden_ones(case: dict[str, Any]) -> None:
    key = draw_key(case["seed"], case["position"], case["choice"])
    bits = [hash32(key, token) for token in case["tokens"]]
    assert key == case["key"]
    assert bits == case["bits"]
    assert [gumbel(word) for word in bits] == pytest.approx(case["gumbel"], abs=2e-5)


@given(words)
def test_mix32_is_a_bijection(value: int) -> None:
    assert 0 <= mix32(value) <= MASK32
    assert unmix32(mix32(value)) == value
    assert mix32(unmix32(value)) == value


@given(words, st.integers(0, 2**20), st.integers(0, 2**20))
def test_tokens_of_one_draw_have_different_bits(key: int, token: int, other: int) -> None:
    assert (hash32(key, token) == hash32(key, other)) == (token == other)


@pytest.mark.parametrize(
    ("width", "scramble"),
    [
        pytest.param(32, mix32, id="mix32"),
        pytest.param(32, lambda token: hash32(0x5EED, token), id="token"),
        pytest.param(32, lambda key: hash32(key, 4711), id="key"),
        pytest.param(64, lambda seed: draw_key(seed, 17), id="seed"),
        pytest.param(32, lambda position: draw_key(42, position), id="position"),
        pytest.param(32, lambda choice: draw_key(42, 17, choice), id="choice"),
    ],
)
def test_each_bit_that_goes_in_flips_each_that_comes_out_half_the_time(
    width: int, scramble: Callable[[int], int]
) -> None:
    samples = 500
    rng = random.Random(7)
    rates = []
    for bit in range(width):
        flips = [0] * 32
        for value in (rng.getrandbits(width) for _ in range(samples)):
            changed = scramble(value) ^ scramble(value ^ 1 << bit)
            for place in range(32):
                flips[place] += changed >> place & 1
        rates += [count / samples for count in flips]
    # One rate has a standard deviation of 0.022; the bound leaves room for the largest of 2048.
    assert max(abs(rate - 0.5) for rate in rates) < 0.12
    assert statistics.fmean(rates) == pytest.approx(0.5, abs=0.005)


def test_draws_next_to_each_other_have_different_keys() -> None:
    seeds = [*range(50), *(2**32 + seed for seed in range(50)), *(2**64 - 1 - seed for seed in range(50))]
    keys = {draw_key(seed, position, choice) for seed in seeds for position in range(50) for choice in range(4)}
    # Of 30,000 keys in 2**32, 0.1 pairs are expected to be equal.
    assert len(keys) >= len(seeds) * 200 - 1


def test_first_choice_is_the_one_meant_when_none_is_named() -> None:
    assert draw_key(7, 3) == draw_key(7, 3, 0) != draw_key(7, 3, 1)


def test_all_bits_of_a_seed_count() -> None:
    assert len({draw_key(1 << bit, 0) for bit in range(64)} | {draw_key(0, 0)}) == 65


def test_noise_lies_between_minus_infinity_and_its_stated_maximum() -> None:
    assert 22.8 < gumbel(0) < 22.9
    assert gumbel(LAST_BELOW_ONE) == pytest.approx(-math.log(24 * math.log(2)))
    assert gumbel(LAST_BELOW_ONE + 1) == gumbel(MASK32) == -math.inf


@given(words, words)
def test_noise_falls_as_bits_rise_and_is_never_nan(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert gumbel(low) >= gumbel(high)
    assert -math.inf <= gumbel(high) < 22.9


def test_small_bits_keep_their_precision() -> None:
    for bits in range(2000):
        exact = -math.log(-math.log1p(-(bits + 0.5) / 2**32))
        assert gumbel(bits) == pytest.approx(exact, abs=1e-6)


def test_noise_has_the_mean_and_the_variance_of_gumbel() -> None:
    noise = [gumbel(hash32(draw_key(3, position), 5)) for position in range(40_000)]
    assert statistics.fmean(noise) == pytest.approx(0.5772, abs=0.03)
    assert statistics.pvariance(noise) == pytest.approx(math.pi**2 / 6, abs=0.06)
