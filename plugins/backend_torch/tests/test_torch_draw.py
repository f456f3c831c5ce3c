"""Draws and masks of the compiled library are those of the reference, to the token."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_backend_torch.kernels import draw, library
from parallax_core.api import Draft, Sampling, Tensor, mask_logits
from parallax_core.api import draw as draw_reference
from parallax_core.testing.golden import read_draft, read_golden, read_logits
from parallax_core.testing.masks import make_mask
from parallax_sampling_torch.draw_inputs import DrawInput
from parallax_sampling_torch.sampler import Sampler

GOLDEN = read_golden()["draws"]
MOST = 2**19
"""Logits of golden draws of one size, at most."""
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def draw_rows(logits: torch.Tensor, drafts: Sequence[Draft]) -> list[int]:
    """Draw with the compiled library, which must not leave a draw to torch."""

    def draw_all(logits: torch.Tensor, rows: Sequence[int], inputs: Sequence[DrawInput]) -> torch.Tensor:
        drawn = draw.draw_rows(logits, rows, inputs)
        assert drawn is not None
        return drawn

    inputs = []
    for draft in drafts:
        tokens = [*draft.prompt, *draft.output] if draft.output else draft.prompt
        inputs.append(DrawInput(draft.sampling, draft.choice, tokens, draft.position, len(draft.prompt)))
    drawn: list[int] = Sampler(logits.shape[1], CPU, draw_all).sample(logits, inputs).tolist()
    return drawn


@pytest.mark.parametrize("size", sorted({case["vocab"] for case in GOLDEN}))
def test_golden_draws_come_out(isa: library.Mode, size: int) -> None:
    cases = [case for case in GOLDEN if case["vocab"] == size][: 1 + MOST // size]
    drawn = draw_rows(torch.tensor([read_logits(case) for case in cases]), [read_draft(case) for case in cases])
    assert [case for case, token in zip(cases, drawn, strict=True) if token != case["token"]] == []


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([1e-6, 0.2, 0.7, 1.0, 3.0, 1e4]),
    top_k=st.one_of(st.just(0), st.integers(1, 400)),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    seed=st.integers(0, 2**64 - 1),
)


@st.composite
def make_rows(draw_value: st.DrawFn) -> list[float]:
    """Return a row of logits: with equal ones, forbidden ones, nearly equal ones or enormous ones."""
    source = random.Random(draw_value(st.integers(0, 2**32)))
    spread, step = draw_value(st.sampled_from([0.0, 0.01, 1.0, 8.0, 1e30])), draw_value(st.sampled_from([0.0, 0.25]))
    forbidden = draw_value(st.sampled_from([0.0, 0.5, 1.0]))
    row = [source.gauss(0, spread) for _ in range(draw_value(st.integers(1, 350)))]
    row = [round(logit / step) * step if step else logit for logit in row]
    return [-math.inf if source.random() < forbidden else logit for logit in row]


@settings(max_examples=300, deadline=None)
@given(sampling=SAMPLINGS, row=make_rows())
def test_any_draw_is_that_of_the_reference(sampling: Sampling, row: list[float]) -> None:
    logits, draft = torch.tensor([row]), Draft(sampling, [1, 2, 3])
    assert draw_rows(logits, [draft]) == [draw_reference(logits[0].tolist(), draft)]


@pytest.mark.parametrize("temperature", [1e36, 1e39, 1e100])
def test_logits_whose_differences_are_infinite_are_drawn(isa: library.Mode, temperature: float) -> None:
    row = ((torch.rand(200, generator=torch.Generator().manual_seed(3)) * 2 - 1) * 3.3e38).tolist()
    row = torch.tensor([[-math.inf, *row]])
    for seed in range(20):
        for top_p in (1.0, 0.5):
            draft = Draft(Sampling(temperature=temperature, seed=seed, top_p=top_p), [1])
            assert draw_rows(row, [draft]) == [draw_reference(row[0].tolist(), draft)]


@pytest.mark.parametrize("top_k", [0, 40])
def test_sum_that_is_just_top_p_ends_where_that_of_the_reference_does(isa: library.Mode, top_k: int) -> None:
    source = random.Random(5)
    for seed in range(200):
        logits = torch.tensor([[round(source.gauss(0, 2) * 4) / 4 for _ in range(40)]]) / 0.7
        scaled = sorted(logits[0].tolist(), reverse=True)
        weights = [math.exp(logit - scaled[0]) for logit in scaled]
        top_p = sum(weights[: source.randrange(1, 39)]) / math.fsum(weights)
        draft = Draft(Sampling(seed=seed, top_p=min(top_p, 1.0), top_k=top_k), [1])
        assert draw_rows(logits, [draft]) == [draw_reference(logits[0].tolist(), draft)]


@pytest.mark.parametrize("spread", [0.02, 2.0])
def test_every_instruction_set_draws_the_same_from_a_large_vocabulary(isa: library.Mode, spread: float) -> None:
    logits = torch.randn(6, 20_011, generator=torch.Generator().manual_seed(1)) * spread
    samplings = [
        Sampling(seed=1),
        Sampling(seed=2, top_p=0.9),
        Sampling(seed=3, top_p=0.9999),
        Sampling(seed=4, top_k=5_000),
        Sampling(seed=5, min_p=0.01, temperature=2.0),
        Sampling(seed=6, top_k=900, top_p=0.7, min_p=0.001),
    ]
    drafts = [Draft(sampling, [4, 5]) for sampling in samplings]
    assert draw_rows(logits, drafts) == [
        draw_reference(row, draft) for row, draft in zip(logits.tolist(), drafts, strict=True)
    ]


def test_rows_without_temperature_beside_others_take_the_likeliest() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))
    drafts = [Draft(Sampling(temperature=temperature, seed=9), [1]) for temperature in (1.0, 0.0, 2.0)]
    wanted = [draw_reference(row, draft) for row, draft in zip(logits.tolist(), drafts, strict=True)]
    assert draw_rows(logits, drafts) == wanted


def test_without_the_library_torch_draws() -> None:
    library.choose_kernels("off")
    try:
        assert draw.draw_rows(torch.zeros(1, 4), [0], [DrawInput(Sampling(), 0, [1], 1, 1)]) is None
    finally:
        library.choose_kernels("auto")


@pytest.mark.parametrize("size", [1, 8, 15, 203])
@pytest.mark.parametrize("numbers", [(0, 1, 2), (2, 0), ()])
def test_masks_are_those_of_the_reference(mode: library.Mode, numbers: tuple[int, ...], size: int) -> None:
    source, logits = random.Random(size), torch.randn(3, size)
    allowed = {number: [token for token in range(size) if source.random() < 0.3] for number in numbers}
    masks = {number: make_mask(tokens, size) for number, tokens in allowed.items()}
    wanted = [list(mask_logits(row, masks.get(number))) for number, row in enumerate(logits.tolist())]
    assert draw.apply_masks(logits, masks).tolist() == wanted


def test_mask_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match=r"masks of .8. bits do not cover 9 tokens"):
        draw.apply_masks(torch.zeros(1, 9), {0: Tensor("uint8", (1,), b"\xff")})
