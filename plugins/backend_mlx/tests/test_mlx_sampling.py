"""The batched sampler draws what the reference draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Draft, Sampler
from parallax_core.api import Sampling, draw, draw_key, gumbel, hash32, keep

MARGIN = 3e-5
"""Scores closer than this may be told apart differently in float32 and in double precision."""

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.37, 0.9, 0.999, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


def find_gap(logits: list[float], draft: Draft, drawn: int, expected: int) -> float:
    """Return by how much the reference prefers its token; infinity where the filters alone decide."""
    sampling = draft.sampling
    if sampling.temperature == 0:
        return float("inf")
    scaled = [logit / sampling.temperature for logit in logits]
    if drawn not in keep(scaled, sampling):
        return float("inf")
    key = draw_key(sampling.seed, draft.position)
    return sum(sign * (scaled[token] + gumbel(hash32(key, token))) for sign, token in ((1, expected), (-1, drawn)))


def check_rows(rows: list[list[float]], drafts: list[Draft]) -> list[int]:
    """Draw ``rows`` in one batch, compare each with the reference, and return what was drawn."""
    drawn: Any = Sampler(len(rows[0])).sample(mx.array(rows), drafts).tolist()
    tokens: list[int] = drawn
    for logits, draft, token in zip(rows, drafts, tokens, strict=True):
        expected = draw(logits, draft.sampling, draft.position)
        if token != expected:
            gap = find_gap(logits, draft, token, expected)
            print(f"drew {token}, the reference {expected}, {gap:.1e} apart: {draft}")
            assert gap < MARGIN
    return tokens


def make_row(rng: random.Random, size: int) -> list[float]:
    """Return logits as float32 holds them, of a few different kinds."""
    kind = rng.choice(["normal", "peaked", "ties", "flat"])
    values: Callable[[], float] = {
        "normal": lambda: rng.gauss(0, 3),
        "peaked": lambda: rng.gauss(0, 1) + (30 if rng.random() < 3 / size else 0),
        "ties": lambda: float(rng.randint(-3, 3)),
        "flat": lambda: 0.0,
    }[kind]
    floats: Any = mx.array([values() for _ in range(size)]).tolist()
    return list(floats)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 70), st.lists(samplings, min_size=1, max_size=5), st.integers(0, 2**20))
def test_sampler_draws_what_the_reference_draws(seed: int, size: int, mixed: list[Sampling], position: int) -> None:
    rng = random.Random(seed)
    drafts = [Draft(sampling, position + index) for index, sampling in enumerate(mixed)]
    check_rows([make_row(rng, size) for _ in mixed], drafts)


@pytest.mark.parametrize("size", [1_000, 49_152, 50_257])
def test_sampler_draws_what_the_reference_draws_from_a_large_vocabulary(size: int) -> None:
    rng = random.Random(size)
    mixed = [
        Sampling(temperature=0),
        Sampling(temperature=1, seed=2**64 - 1),
        Sampling(temperature=0.7, top_k=50, seed=1),
        Sampling(temperature=1.3, top_p=0.9, seed=2),
        Sampling(temperature=1, top_k=1, seed=3),
        Sampling(temperature=1, top_p=1e-9, seed=4),
        Sampling(temperature=2, top_k=400, top_p=0.5, seed=5),
    ]
    check_rows([make_row(rng, size) for _ in mixed], [Draft(sampling, 7) for sampling in mixed])


def test_sampler_draws_a_row_the_same_alone_and_in_a_batch() -> None:
    rng = random.Random(11)
    mixed = [
        Sampling(
            temperature=rng.choice([0, 0.3, 1, 2]),
            top_k=rng.choice([0, 3, 90]),
            top_p=rng.choice([0.3, 0.8, 1.0]),
            seed=n,
        )
        for n in range(60)
    ]
    rows = mx.array([make_row(rng, 2_003) for _ in mixed])
    drafts = [Draft(sampling, n) for n, sampling in enumerate(mixed)]
    sampler = Sampler(2_003)
    alone = [sampler.sample(rows[n : n + 1], drafts[n : n + 1]).item() for n in range(len(mixed))]
    assert sampler.sample(rows, drafts).tolist() == alone
    assert len(set(alone)) > 20


def test_greedy_takes_the_lowest_of_equal_tokens_in_a_mixed_batch() -> None:
    logits = [[0.0, -0.0, 3.0, 1.0, 3.0]] * 2
    drafts = [Draft(Sampling(temperature=0), 1), Draft(Sampling(temperature=1, seed=1), 1)]
    assert check_rows(logits, drafts)[0] == 2
    assert check_rows([[-0.0, 0.0]], drafts[:1]) == [0]


def test_top_k_keeps_all_that_tie_with_the_last() -> None:
    drafts = [Draft(Sampling(top_k=2, seed=seed), 0) for seed in range(200)]
    assert set(check_rows([[1.0, 5.0, 1.0, 0.0]] * 200, drafts)) == {0, 1, 2}


def test_banned_tokens_are_never_drawn() -> None:
    drafts = [Draft(Sampling(temperature=50, seed=seed), 0) for seed in range(100)]
    row = [-float("inf"), 0.0, -float("inf"), 0.1]
    assert set(check_rows([row] * 100, drafts)) == {1, 3}


def test_noise_of_the_sampler_is_that_of_the_reference() -> None:
    sampler = Sampler(40_000)
    noise: Any = sampler._make_noise([Draft(Sampling(seed=9), 3)])[0].tolist()
    key = draw_key(9, 3)
    expected = [gumbel(hash32(key, token)) for token in range(40_000)]
    assert max(abs(left - right) for left, right in zip(noise, expected, strict=True)) < 5e-6
    assert max(expected) > 9
