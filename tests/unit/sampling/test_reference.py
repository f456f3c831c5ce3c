from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.contracts.sample import Sampling
from parallax_core.sampling.draw import draw_key, gumbel, hash32
from parallax_core.sampling.reference import Draft, adjust, best, draw, keep, logprobs
from parallax_core.testing.golden import read_golden

GOLDEN = read_golden()
LOGITS = [0.0, 1.0, 2.0, 1.5, -1.0, 0.5, 2.0, -3.0]
quarters = st.lists(st.integers(-20, 20).map(lambda value: value / 4), min_size=1, max_size=40)


def formula(case: Mapping[str, Any]) -> list[float]:
    a, b, m, d, c = case["logits"]
    return [((a * token + b) % m) / d - c for token in range(case["vocab"])]


def read_sampling(case: Mapping[str, Any]) -> Sampling:
    fields = dict(case["sampling"])
    bias = tuple((token, float(value)) for token, value in fields.pop("logit_bias", ()))
    return Sampling(**fields | {"logit_bias": bias, "stop_ids": tuple(fields.pop("stop_ids", ()))})


def read_draft(case: Mapping[str, Any]) -> Draft:
    """Return the draft of a case; one without a prompt stands for any history of its length."""
    prompt = case.get("prompt", range(case["position"]))
    return Draft(read_sampling(case), prompt, case.get("output", ()), case["choice"])


def at(position: int, sampling: Sampling) -> Draft:
    """Return a draft after any history of ``position`` tokens."""
    return Draft(sampling, range(position))


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


def run_case(case: Mapping[str, Any], draft: Draft) -> tuple[int, int | None]:
    """Return the token drawn, and how many were kept for that."""
    logits, allowed, sampling = formula(case), case.get("allowed"), draft.sampling
    token = draw(logits, draft, allowed)
    if sampling.temperature == 0:
        return token, None
    return token, len(keep([logit / sampling.temperature for logit in adjust(logits, draft, allowed)], sampling))


@pytest.mark.parametrize("index", range(len(GOLDEN["draws"])))
def test_draws_are_the_golden_ones(index: int) -> None:
    case = GOLDEN["draws"][index]
    draft = read_draft(case)
    assert draft.position == case["position"]
    assert run_case(case, draft) == (case["token"], case["kept"])


@pytest.mark.parametrize("field", Sampling.__struct_fields__)
def test_golden_draws_depend_on_every_field(field: str) -> None:
    """Or an implementation without it could pass."""
    plain = getattr(Sampling(temperature=1.0625, seed=12345), field)
    small = [case for case in GOLDEN["draws"] if case["vocab"] <= 200 and case["sampling"].get(field, plain) != plain]
    changed = [case for case in small if run_case(case, change(read_draft(case), field, plain)) != find_answer(case)]
    assert len(changed) > 20


@pytest.mark.parametrize("field", ["choice", "prompt", "output", "allowed"])
def test_golden_draws_depend_on_choice_history_and_grammar(field: str) -> None:
    small = [case for case in GOLDEN["draws"] if case["vocab"] <= 200 and case.get(field)]
    blank = {"choice": 0, "prompt": [16] * 13, "output": [16] * 24, "allowed": None}
    replaced = [case | {field: blank[field]} for case in small]
    assert sum(run_case(case, read_draft(case)) != find_answer(case) for case in replaced) > 5


def find_answer(case: Mapping[str, Any]) -> tuple[int, int | None]:
    return case["token"], case["kept"]


def change(draft: Draft, field: str, value: Any) -> Draft:
    return replace(draft, sampling=msgspec.structs.replace(draft.sampling, **{field: value}))


@pytest.mark.parametrize("index", range(len(GOLDEN["scores"])))
def test_logprobs_and_best_are_the_golden_ones(index: int) -> None:
    case = GOLDEN["scores"][index]
    found = logprobs(formula(case))
    assert found[-1] == pytest.approx(case["last"], abs=2e-6)
    top = best(found, 5)
    assert [token for token, _ in top] == [token for token, _ in case["top"]]
    assert [value for _, value in top] == pytest.approx([value for _, value in case["top"]], abs=2e-6)


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
    seen = [draw(LOGITS, at(position, sampling)) for position in range(10_000)]
    kept = keep([logit / sampling.temperature for logit in LOGITS], sampling)
    check_frequencies(seen, softmax(LOGITS, sampling.temperature, kept))


@pytest.mark.parametrize("first", [0, 2**32 - 5000, 2**64 - 10_000])
def test_draws_over_seeds_follow_the_softmax(first: int) -> None:
    seen = [draw(LOGITS, at(100, Sampling(seed=first + step))) for step in range(10_000)]
    check_frequencies(seen, softmax(LOGITS, 1, range(len(LOGITS))))


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    logits = [0.0, 0.5, 1.0, 0.0]
    shares = softmax(logits, 1, range(4))
    pairs = {(one, two): shares[one] * shares[two] for one in shares for two in shares}
    drawn = [[draw(logits, at(position, Sampling(seed=seed))) for position in range(10_000)] for seed in (8, 9)]
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
    assert draw(logits, at(3, sampling)) == logits.index(max(logits))


@given(quarters, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_draw_is_one_of_the_kept_and_repeats(logits: list[float], seed: int, position: int) -> None:
    sampling = Sampling(top_k=3, top_p=0.7, seed=seed)
    token = draw(logits, at(position, sampling))
    assert token in keep(logits, sampling)
    assert token == draw(list(logits), at(position, sampling))


@given(quarters, st.integers(0, 2**64 - 1))
def test_a_token_without_probability_is_never_drawn(logits: list[float], seed: int) -> None:
    masked = [-math.inf, *logits, -math.inf]
    for sampling in (Sampling(seed=seed), Sampling(seed=seed, top_p=0.99), Sampling(seed=seed, top_k=2)):
        assert 0 < draw(masked, at(1, sampling)) < len(masked) - 1


def test_token_without_probability_loses_to_one_without_noise() -> None:
    """Position 11 gives token 8 of the golden case minus infinity as its noise."""
    case = next(case for case in GOLDEN["draws"] if case["position"] == 11)
    masked = [-math.inf] * 8 + [1.0] + [-math.inf] * 8
    assert gumbel(hash32(draw_key(case["sampling"]["seed"], 11), 8)) == -math.inf
    assert draw(masked, at(11, Sampling(seed=case["sampling"]["seed"]))) == 8


def test_first_token_is_drawn_when_all_are_forbidden() -> None:
    for sampling in (Sampling(temperature=0), Sampling(top_k=2, top_p=0.5, min_p=0.5), Sampling()):
        assert draw([0.0, 1.0, 2.0], at(4, sampling), allowed=()) == 0


@given(quarters, st.floats(0, 1), st.integers(0, 10), st.sampled_from([0.3, 0.9, 1.0]))
def test_min_p_keeps_what_is_probable_enough(scaled: list[float], min_p: float, top_k: int, top_p: float) -> None:
    before = keep(scaled, Sampling(top_k=top_k, top_p=top_p))
    kept = keep(scaled, Sampling(top_k=top_k, top_p=top_p, min_p=min_p))
    assert kept == [token for token in before if math.exp(scaled[token] - max(scaled)) >= min_p]
    assert scaled.index(max(scaled)) in kept


def test_presence_and_frequency_count_the_output_and_repetition_the_prompt_too() -> None:
    logits = [1.0, -1.0, 2.0, -2.0, 0.0]
    prompt, output = [0, 1, 1], [2, 2, 3]
    once = adjust(logits, Draft(Sampling(presence_penalty=0.5), prompt, output))
    each = adjust(logits, Draft(Sampling(frequency_penalty=0.5), prompt, output))
    both = adjust(logits, Draft(Sampling(repetition_penalty=2), prompt, output))
    assert once == [1.0, -1.0, 1.5, -2.5, 0.0]
    assert each == [1.0, -1.0, 1.0, -2.5, 0.0]
    assert both == [0.5, -2.0, 1.0, -4.0, 0.0]


def test_adjustments_are_made_in_the_stated_order() -> None:
    fields: dict[str, Any] = {"repetition_penalty": 2, "presence_penalty": 1, "frequency_penalty": 0.25}
    sampling = Sampling(**fields, logit_bias=((0, 10.0), (1, 3.0)), min_tokens=3, stop_ids=(1,))
    assert adjust([4.0, 4.0, 4.0], Draft(sampling, [], [0, 0])) == [10.5, -math.inf, 4.0]
    assert adjust([4.0, 4.0, 4.0], Draft(sampling, [], [0, 0, 1])) == [10.5, 3.75, 4.0]
    assert adjust([4.0, 4.0, 4.0], Draft(sampling, [], [0, 0, 1]), {0, 2}) == [10.5, -math.inf, 4.0]


def test_tokens_outside_the_vocabulary_have_no_effect() -> None:
    sampling = Sampling(repetition_penalty=2, logit_bias=((-1, 5.0), (2, 5.0)), min_tokens=9, stop_ids=(-1, 7))
    assert adjust([1.0, 2.0], Draft(sampling, [-1, 9], [2, -2])) == [1.0, 2.0]


@given(quarters, st.integers(1, 60))
def test_best_are_sorted_and_logprobs_sum_to_one(logits: list[float], num: int) -> None:
    found = logprobs([-math.inf, *logits])
    assert math.fsum(map(math.exp, found)) == pytest.approx(1)
    top = best(found, num)
    assert len(top) == min(num, len(found))
    assert list(top) == sorted(enumerate(found), key=lambda pair: (-pair[1], pair[0]))[:num]


def test_tokens_that_are_not_allowed_cannot_be_drawn() -> None:
    adjusted = adjust(LOGITS, at(3, Sampling()), {1, 4})
    assert adjusted == [LOGITS[token] if token in {1, 4} else -math.inf for token in range(len(LOGITS))]
