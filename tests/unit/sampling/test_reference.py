from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.contracts.sample import Sampling
from parallax_core.sampling.reference import draw, keep

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden_draws.json").read_bytes())
LOGITS = [0.0, 1.0, 2.0, 1.5, -1.0, 0.5, 2.0, -3.0]
quarters = st.lists(st.integers(-20, 20).map(lambda value: value / 4), min_size=1, max_size=40)


def formula(case: Mapping[str, Any]) -> list[float]:
    a, b, m, d = case["logits"]
    return [((a * token + b) % m) / d for token in range(case["vocab"])]


def softmax(logits: Sequence[float], temperature: float, kept: Iterable[int]) -> dict[int, float]:
    weights = {token: math.exp(logits[token] / temperature) for token in kept}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def check_frequencies(seen: Iterable[Hashable], expected: Mapping[Any, float]) -> None:
    """Fail if a chi-square statistic is six standard deviations above its mean."""
    counts = Counter(seen)
    total = counts.total()
    assert set(counts) <= set(expected)
    square = sum((counts[what] - total * share) ** 2 / (total * share) for what, share in expected.items())
    freedom = len(expected) - 1
    assert square < freedom + 6 * math.sqrt(2 * freedom), counts


def name_case(case: Mapping[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("vocab", "seed", "position", "temperature", "top_k", "top_p"))


@pytest.mark.parametrize("case", GOLDEN["draws"], ids=name_case)
def test_draws_are_the_golden_ones(case: Mapping[str, Any]) -> None:
    logits = formula(case)
    sampling = Sampling(**{name: case[name] for name in ("temperature", "top_k", "top_p", "seed")})
    assert draw(logits, sampling, case["position"]) == case["token"]
    if sampling.temperature:
        assert len(keep([logit / sampling.temperature for logit in logits], sampling)) == case["kept"]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(temperature=0.5, seed=2),
        Sampling(temperature=2.0, seed=2**64 - 1),
        Sampling(top_k=3, seed=4),
        Sampling(temperature=1.3, top_p=0.8, seed=5),
        Sampling(temperature=0.8, top_k=5, top_p=0.9, seed=6),
    ],
    ids=str,
)
def test_draws_over_positions_follow_the_softmax_of_what_is_kept(sampling: Sampling) -> None:
    seen = [draw(LOGITS, sampling, position) for position in range(10_000)]
    kept = keep([logit / sampling.temperature for logit in LOGITS], sampling)
    check_frequencies(seen, softmax(LOGITS, sampling.temperature, kept))


@pytest.mark.parametrize("first", [0, 2**32 - 5000, 2**64 - 10_000])
def test_draws_over_seeds_follow_the_softmax(first: int) -> None:
    seen = [draw(LOGITS, Sampling(seed=first + step), 100) for step in range(10_000)]
    check_frequencies(seen, softmax(LOGITS, 1, range(len(LOGITS))))


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    logits = [0.0, 0.5, 1.0, 0.0]
    shares = softmax(logits, 1, range(4))
    pairs = {(one, two): shares[one] * shares[two] for one in shares for two in shares}
    drawn = [[draw(logits, Sampling(seed=seed), position) for position in range(10_000)] for seed in (8, 9)]
    check_frequencies(zip(drawn[0], drawn[0][1:], strict=False), pairs)
    check_frequencies(zip(drawn[0], drawn[1], strict=True), pairs)


@given(quarters, st.integers(1, 50))
def test_top_k_keeps_what_fewer_than_k_exceed(scaled: list[float], top_k: int) -> None:
    kept = keep(scaled, Sampling(top_k=top_k))
    assert kept == [token for token, value in enumerate(scaled) if sum(other > value for other in scaled) < top_k]


@given(quarters, st.floats(0.01, 0.99), st.integers(0, 10))
def test_top_p_keeps_down_to_the_highest_border_that_reaches_p(scaled: list[float], top_p: float, top_k: int) -> None:
    before = keep(scaled, Sampling(top_k=top_k))
    weights = {token: Fraction(math.exp(scaled[token] - max(scaled))) for token in before}
    goal = Fraction(top_p) * sum(weights.values())
    border = max(w for w in weights.values() if sum(v for v in weights.values() if v >= w) >= goal)
    kept = keep(scaled, Sampling(top_k=top_k, top_p=top_p))
    assert kept == [token for token in before if weights[token] >= border]


@given(quarters, st.integers(0, 10), st.floats(0.01, 1))
def test_filters_do_not_depend_on_the_order_of_tokens(scaled: list[float], top_k: int, top_p: float) -> None:
    sampling = Sampling(top_k=top_k, top_p=top_p)
    forward = [scaled[token] for token in keep(scaled, sampling)]
    backward = [scaled[::-1][token] for token in keep(scaled[::-1], sampling)]
    assert forward == backward[::-1]
    assert max(scaled) in forward


def test_top_p_that_is_reached_exactly_keeps_no_more() -> None:
    half = -math.log(2)
    assert keep([0.0, half, half], Sampling(top_p=0.5)) == [0]
    assert keep([0.0, half, half], Sampling(top_p=0.5001)) == [0, 1, 2]


def test_ties_at_the_border_of_a_filter_are_kept() -> None:
    assert keep([1.0, 3.0, 1.0, 2.0, 1.0], Sampling(top_k=3)) == [0, 1, 2, 3, 4]
    assert keep([1.0, 3.0, 1.0, 2.0, 1.0], Sampling(top_k=2)) == [1, 3]
    assert keep([0.0] * 4, Sampling(top_p=0.01)) == [0, 1, 2, 3]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0, top_k=2, top_p=0.3, seed=9)])
@given(logits=quarters)
def test_greedy_takes_the_lowest_id_of_the_best(sampling: Sampling, logits: list[float]) -> None:
    assert draw(logits, sampling, 3) == logits.index(max(logits))


@given(quarters, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_draw_is_one_of_the_kept_and_repeats(logits: list[float], seed: int, position: int) -> None:
    sampling = Sampling(top_k=3, top_p=0.7, seed=seed)
    token = draw(logits, sampling, position)
    assert token in keep(logits, sampling)
    assert token == draw(list(logits), sampling, position)


@given(quarters, st.integers(0, 2**64 - 1))
def test_a_token_without_probability_is_never_drawn(logits: list[float], seed: int) -> None:
    masked = [-math.inf, *logits, -math.inf]
    for sampling in (Sampling(seed=seed), Sampling(seed=seed, top_p=0.99), Sampling(seed=seed, top_k=2)):
        assert 0 < draw(masked, sampling, 1) < len(masked) - 1
