"""The batched sampler draws what the reference draws."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_backend_mlx import sampling as module
from parallax_backend_mlx.ranking import rank_tokens
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_core.api import Draft, Sampling, adjust, best, draw, draw_key, gumbel, hash32, keep, logprobs
from parallax_core.testing.golden import read_draft, read_golden, read_logits
from parallax_stage_tools.ranking import Inquiry

GOLDEN = read_golden()
MARGIN = 3e-5
"""Scores closer than this may be told apart differently in float32 and in double precision."""

tokens = st.integers(-2, 75)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.37, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.07, 0.6, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    presence_penalty=st.sampled_from([0.0, 0.75, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 2.0, 0.5, 1.3]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-math.inf, -1.5, 0.25, 8.0]), max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
    min_tokens=st.sampled_from([0, 3, 9]),
    stop_ids=st.lists(tokens, max_size=4).map(tuple),
)
plain_samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.37, 0.9, 0.999, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


def at(position: int, sampling: Sampling) -> Draft:
    """Return a draft after any history of ``position`` tokens."""
    return Draft(sampling, range(position))


def make_draft(rng: random.Random, sampling: Sampling, size: int) -> Draft:
    """Return a draft whose history holds some tokens often."""
    prompt, output = (
        [int(size * rng.random() ** 3) for _ in range(rng.randint(0, most))] for most in (20, rng.choice([0, 20]))
    )
    return Draft(sampling, prompt, output, rng.randint(0, 5))


def find_gap(logits: list[float], draft: Draft, drawn: int, expected: int) -> float:
    """Return by how much the reference prefers its token; infinity where the filters alone decide."""
    sampling = draft.sampling
    if sampling.temperature == 0:
        return math.inf
    scaled = [logit / sampling.temperature for logit in adjust(logits, draft)]
    if drawn not in keep(scaled, sampling):
        return math.inf
    key = draw_key(sampling.seed, draft.position, draft.choice)
    return sum(sign * (scaled[token] + gumbel(hash32(key, token))) for sign, token in ((1, expected), (-1, drawn)))


def check_rows(rows: list[list[float]], drafts: Sequence[Draft]) -> list[int]:
    """Draw ``rows`` in one batch, compare each with the reference, and return what was drawn."""
    drawn: Any = Sampler(len(rows[0])).sample(mx.array(rows), drafts).tolist()
    found: list[int] = drawn
    for logits, draft, token in zip(rows, drafts, found, strict=True):
        expected = draw(logits, draft)
        if token != expected:
            gap = find_gap(logits, draft, token, expected)
            print(f"drew {token}, the reference {expected}, {gap:.1e} apart: {draft}")
            assert gap < MARGIN
    return found


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


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 70), st.lists(samplings | plain_samplings, min_size=1, max_size=5))
def test_sampler_draws_what_the_reference_draws(seed: int, size: int, mixed: list[Sampling]) -> None:
    rng = random.Random(seed)
    drafts = [make_draft(rng, sampling, size) for sampling in mixed]
    check_rows([make_row(rng, size) for _ in mixed], drafts)


narrow_samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 72),
    top_p=st.floats(0.05, 1, exclude_min=True) | st.just(1.0),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(2, 70), st.lists(narrow_samplings, min_size=1, max_size=5))
def test_noise_for_the_best_tokens_only_draws_the_same(seed: int, best: int, mixed: list[Sampling]) -> None:
    """Whether the filters leave more than these or not, and whether others tie with the last of them or not."""
    rng = random.Random(seed)
    drafts = [make_draft(rng, sampling, 71) for sampling in mixed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BEST", best)
        check_rows([make_row(rng, 71) for _ in mixed], drafts)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.lists(samplings | plain_samplings, min_size=2, max_size=12))
def test_sampler_draws_a_row_the_same_alone_and_in_a_batch(seed: int, mixed: list[Sampling]) -> None:
    rng = random.Random(seed)
    rows = mx.array([make_row(rng, 503) for _ in mixed])
    drafts = [make_draft(rng, sampling, 503) for sampling in mixed]
    sampler = Sampler(503)
    alone = [sampler.sample(rows[n : n + 1], drafts[n : n + 1]).item() for n in range(len(mixed))]
    assert sampler.sample(rows, drafts).tolist() == alone


@pytest.mark.parametrize("size", sorted({case["vocab"] for case in GOLDEN["draws"]}))
def test_draws_are_the_golden_ones(size: int) -> None:
    cases = [case for case in GOLDEN["draws"] if case["vocab"] == size]
    drawn = Sampler(size).sample(mx.array(list(map(read_logits, cases))), list(map(read_draft, cases)))
    wrong = [case for case, token in zip(cases, drawn, strict=True) if token.item() != case["token"]]
    assert wrong == []


@pytest.mark.parametrize("case", GOLDEN["scores"], ids=lambda case: f"{case['logits']}-{case['vocab']}")
def test_logprobs_are_the_golden_ones(case: Mapping[str, Any]) -> None:
    (ranking,) = rank_tokens(mx.array([read_logits(case)]), [Inquiry(0, [case["vocab"] - 1], 5)])
    assert ranking.logprobs == pytest.approx([case["last"]], abs=2e-5)
    assert [token for token, _ in ranking.top] == [token for token, _ in case["top"]]
    assert [value for _, value in ranking.top] == pytest.approx([value for _, value in case["top"]], abs=2e-5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 70), st.lists(st.integers(0, 80), min_size=1, max_size=150))
def test_rankings_are_those_of_the_reference(seed: int, size: int, tops: list[int]) -> None:
    rng = random.Random(seed)
    rows = [make_row(rng, size) for _ in range(3)]
    inquiries = [Inquiry(n % 3, [rng.randrange(size) for _ in range(rng.randint(0, 3))], n) for n in tops]
    for inquiry, ranking in zip(inquiries, rank_tokens(mx.array(rows), inquiries), strict=True):
        expected = logprobs(rows[inquiry.row])
        assert ranking.logprobs == pytest.approx([expected[token] for token in inquiry.tokens], abs=2e-5)
        assert [token for token, _ in ranking.top] == [token for token, _ in best(expected, inquiry.top)]


def test_ranking_counts_forbidden_tokens_last() -> None:
    (ranking,) = rank_tokens(mx.array([[-math.inf, 0.0, -math.inf, 0.0, -0.0]]), [Inquiry(0, [0, 1], 5)])
    assert [token for token, _ in ranking.top] == [1, 3, 4, 0, 2]
    assert ranking.logprobs == pytest.approx((-math.inf, -math.log(3)))


def test_every_choice_draws_for_itself() -> None:
    drafts = [Draft(Sampling(seed=5), range(9), choice=choice) for choice in range(40)]
    assert len(set(check_rows([[0.0] * 90] * 40, drafts))) > 20


def test_penalties_touch_only_the_rows_that_ask_for_them() -> None:
    plain, greedy = Sampling(temperature=0), Sampling(temperature=0, presence_penalty=2)
    drafts = [Draft(sampling, [1], [2]) for sampling in (plain, greedy, plain)]
    assert check_rows([[0.0, 1.0, 2.0]] * 3, drafts) == [2, 1, 2]


def test_tokens_outside_the_vocabulary_are_harmless() -> None:
    sampling = Sampling(temperature=0, logit_bias=((-1, 99.0), (3, 99.0)), min_tokens=1, stop_ids=(-2, 2**31))
    assert check_rows([[0.0, 2.0, 1.0]], [Draft(sampling, [])]) == [1]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(top_k=2, top_p=0.5, min_p=0.5), Sampling()])
def test_first_token_is_drawn_when_all_are_forbidden(sampling: Sampling) -> None:
    bias = tuple((token, -math.inf) for token in range(3))
    assert check_rows([[0.0, 1.0, 2.0]], [at(3, msgspec.structs.replace(sampling, logit_bias=bias))]) == [0]


def test_forbidden_token_loses_to_one_without_noise() -> None:
    case = next(case for case in GOLDEN["draws"] if case["position"] == 11)
    masked = [-math.inf] * 8 + [1.0] + [-math.inf] * 8
    assert check_rows([masked], [at(11, Sampling(seed=case["sampling"]["seed"]))]) == [8]


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
        Sampling(temperature=1.5, min_p=0.02, seed=6),
    ]
    check_rows([make_row(rng, size) for _ in mixed], [at(7, sampling) for sampling in mixed])


def test_greedy_takes_the_lowest_of_equal_tokens_in_a_mixed_batch() -> None:
    logits = [[0.0, -0.0, 3.0, 1.0, 3.0]] * 2
    drafts = [at(1, Sampling(temperature=0)), at(1, Sampling(temperature=1, seed=1))]
    assert check_rows(logits, drafts)[0] == 2
    assert check_rows([[-0.0, 0.0]], drafts[:1]) == [0]


def test_top_k_keeps_all_that_tie_with_the_last() -> None:
    drafts = [at(0, Sampling(top_k=2, seed=seed)) for seed in range(200)]
    assert set(check_rows([[1.0, 5.0, 1.0, 0.0]] * 200, drafts)) == {0, 1, 2}


def test_banned_tokens_are_never_drawn() -> None:
    drafts = [at(0, Sampling(temperature=50, seed=seed)) for seed in range(100)]
    row = [-float("inf"), 0.0, -float("inf"), 0.1]
    assert set(check_rows([row] * 100, drafts)) == {1, 3}


def test_noise_of_the_sampler_is_that_of_the_reference() -> None:
    """Without the noise of the reference all scores are equal, so that a token with 2e-5 more is drawn."""
    key, tokens = draw_key(9, 3), range(0, 40_000, 1009)
    noise = [gumbel(hash32(key, token)) for token in range(40_000)]
    logits = mx.repeat(-mx.array([noise]), len(tokens), axis=0)
    logits[mx.arange(len(tokens)), mx.array(list(tokens))] += 2e-5
    drawn = Sampler(40_000).sample(logits, [at(3, Sampling(seed=9))] * len(tokens))
    assert drawn.tolist() == list(tokens)
    assert max(noise) > 9
