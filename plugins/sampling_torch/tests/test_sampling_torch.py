"""Draws are those of the reference: golden vectors, and every filter and penalty over a large vocabulary."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from parallax_core.api import Draft, Sampling, best, draw, draw_key, gumbel, hash32, keep, logprobs, mask_logits
from parallax_core.testing.golden import read_draft, read_golden, read_logits
from parallax_core.testing.masks import make_mask
from parallax_sampling_torch import sampler
from parallax_sampling_torch.draw_inputs import DrawInput
from parallax_sampling_torch.filters import Candidates, find_border
from parallax_sampling_torch.float_order import map_floats
from parallax_sampling_torch.gumbel import Noise
from parallax_sampling_torch.masks import mask_rows
from parallax_sampling_torch.ranking import rank_tokens
from parallax_sampling_torch.sampler import Sampler
from parallax_stage_tools.ranking import Inquiry

GOLDEN = read_golden()
CPU = torch.device("cpu")
MOST = 2**20
"""Logits of golden draws of one size, at most."""
VOCAB = 3000
"""More than the best ones that are looked at first."""


def make_draw_input(draft: Draft) -> DrawInput:
    tokens = [*draft.prompt, *draft.output] if draft.output else draft.prompt  # which may be a range without end
    return DrawInput(draft.sampling, draft.choice, tokens, draft.position, len(draft.prompt))


def draw_rows(logits: Sequence[Sequence[float]], drafts: Sequence[Draft]) -> list[int]:
    sampler = Sampler(len(logits[0]), CPU)
    drawn: list[int] = sampler.sample(torch.tensor(logits), [make_draw_input(draft) for draft in drafts]).tolist()
    return drawn


@pytest.mark.parametrize("size", sorted({case["vocab"] for case in GOLDEN["draws"]}))
def test_golden_draws_come_out(size: int) -> None:
    cases = [case for case in GOLDEN["draws"] if case["vocab"] == size][: 1 + MOST // size]
    drawn = draw_rows([read_logits(case) for case in cases], [read_draft(case) for case in cases])
    assert [case for case, token in zip(cases, drawn, strict=True) if token != case["token"]] == []


def test_golden_scores_come_out() -> None:
    for case in GOLDEN["scores"]:
        [ranking] = rank_tokens(torch.tensor([read_logits(case)]), [Inquiry(0, [case["vocab"] - 1], 5)])
        assert ranking.logprobs == pytest.approx([case["last"]], abs=2e-5)
        assert [token for token, _ in ranking.top] == [token for token, _ in case["top"]]


def test_noise_is_that_of_the_reference() -> None:
    ids = [0, 1, 17, VOCAB - 1]
    draw_input = DrawInput(Sampling(seed=2**63 + 5), 3, range(9), 9, 4)
    key = draw_key(2**63 + 5, 9, 3)
    found = Noise(VOCAB, CPU).make([draw_input], torch.tensor([ids]))[0].tolist()
    assert found == pytest.approx([gumbel(hash32(key, token)) for token in ids], rel=1e-6)


def make_drafts() -> list[Draft]:
    source = random.Random(7)
    prompt = [source.randrange(VOCAB) for _ in range(9)]
    plain: list[Sampling] = [
        Sampling(temperature=0),
        Sampling(temperature=1.5),
        Sampling(top_k=20),
        Sampling(top_p=0.8),
        Sampling(top_p=0.999, temperature=3.0),
        Sampling(min_p=0.2),
        Sampling(top_k=50, top_p=0.5, min_p=0.01, temperature=0.7),
        Sampling(repetition_penalty=1.8, presence_penalty=0.5, frequency_penalty=0.25),
        Sampling(logit_bias=((5, 40.0), (6, -40.0)), min_tokens=8, stop_ids=(5,)),
        Sampling(temperature=0, logit_bias=tuple((token, float("-inf")) for token in range(0, VOCAB, 2))),
    ]
    return [
        Draft(
            Sampling(**{name: getattr(sampling, name) for name in sampling.__struct_fields__} | {"seed": seed}),
            prompt,
            [source.randrange(20) for _ in range(seed % 5)],
            choice=seed % 3,
        )
        for seed, sampling in enumerate(plain * 6)
    ]


def test_rows_together_draw_what_the_reference_draws() -> None:
    drafts, source = make_drafts(), random.Random(8)
    logits = [[source.gauss(0, 3) for _ in range(VOCAB)] for _ in drafts]
    exact = torch.tensor(logits).tolist()
    assert draw_rows(logits, drafts) == [draw(row, draft) for row, draft in zip(exact, drafts, strict=True)]


@pytest.mark.parametrize("size", [1, 5, 30, 100])
def test_looking_at_the_best_tokens_first_changes_no_draw(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the filters of a row leave more than these, as those of some do, or not."""
    monkeypatch.setattr(sampler, "BEST", size)
    source = random.Random(size)
    logits = [[source.gauss(0, 2) // 0.25 / 4 for _ in range(150)] for _ in range(200)]  # with ties
    drafts = [
        Draft(
            Sampling(
                temperature=source.choice([0.7, 1.0, 3.0]),
                top_k=source.choice([0, source.randint(1, 160)]),
                top_p=source.choice([1.0, source.random() or 1.0]),
                min_p=source.choice([0.0, source.random()]),
                seed=seed,
            ),
            [1, 2],
        )
        for seed in range(len(logits))
    ]
    assert draw_rows(logits, drafts) == [draw(row, draft) for row, draft in zip(logits, drafts, strict=True)]


def test_row_draws_alone_what_it_draws_in_a_batch() -> None:
    drafts, source = make_drafts()[:20], random.Random(9)
    logits = [[source.gauss(0, 3) for _ in range(VOCAB)] for _ in drafts]
    together = draw_rows(logits, drafts)
    assert [draw_rows([row], [draft])[0] for row, draft in zip(logits, drafts, strict=True)] == together


@pytest.mark.parametrize("sampling", [Sampling(top_k=7), Sampling(top_p=0.6), Sampling(top_p=0.9, top_k=100)])
def test_filters_keep_what_the_reference_keeps(sampling: Sampling) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 200).mul(3).round(decimals=1)  # with ties
    scaled = logits - logits.amax(-1, keepdim=True)
    field = Candidates(map_floats(logits), scaled)
    border = find_border(field, field, [sampling] * 4)
    for row in range(4):
        found = (field.keys[row] >= border[row]).nonzero()[:, 0].tolist()
        assert found == keep(scaled[row].tolist(), sampling)


def test_all_tokens_forbidden_draws_the_first() -> None:
    banned = tuple((token, float("-inf")) for token in range(VOCAB))
    for sampling in (Sampling(temperature=0, logit_bias=banned), Sampling(logit_bias=banned, top_k=3)):
        assert draw_rows([[0.0] * VOCAB], [Draft(sampling, [1])]) == [0]


def test_ranking_is_that_of_the_reference() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 300).mul(2).round(decimals=1)  # with ties
    rankings = rank_tokens(logits, [Inquiry(0, (5, 7), 4), Inquiry(2, (9,), 0), Inquiry(1, (), 300)])
    for row, ranking, tokens, top in zip((0, 2, 1), rankings, ((5, 7), (9,), ()), (4, 0, 300), strict=True):
        expected = logprobs(logits[row].tolist())
        assert ranking.logprobs == pytest.approx([expected[token] for token in tokens], abs=1e-5)
        assert [token for token, _ in ranking.top] == [token for token, _ in best(expected, top)]


def test_order_of_integers_is_that_of_floats() -> None:
    values = torch.tensor([-torch.inf, -3.4e38, -1.0, -1e-40, -0.0, 0.0, 1e-40, 2.5, torch.inf])
    keys = map_floats(values).tolist()
    assert keys == sorted(keys)
    assert keys[4] == keys[5]
    assert len(set(keys)) == len(keys) - 1


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1,), (2, 0), ()])
def test_masks_are_those_of_the_reference(numbers: tuple[int, ...]) -> None:
    source = random.Random(4)
    logits = torch.randn(3, VOCAB)
    allowed = {number: source.sample(range(VOCAB), 40) for number in numbers}
    masks = {number: make_mask(tokens, VOCAB) for number, tokens in allowed.items()}
    wanted = [list(mask_logits(row, masks.get(number))) for number, row in enumerate(logits.tolist())]
    assert mask_rows(logits, masks).tolist() == wanted
