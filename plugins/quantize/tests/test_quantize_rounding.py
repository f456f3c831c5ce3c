"""Grids, and matrices rounded to them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from parallax_quantize.grids import AffineGrid, FloatGrid, Grid
from parallax_quantize.rounding import restore, round_by_inputs, round_plain

ROWS, INPUTS = 48, 128


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("has_integer_zero", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_affine_grid_rounds_no_worse_than_ends_do(bits: int, has_integer_zero: bool) -> None:
    weight = draw(ROWS, INPUTS)
    grid = AffineGrid(bits, 32, torch.float32, has_integer_zero=has_integer_zero)
    rounded = round_plain(weight, grid)
    errors = (restore(rounded, grid) - weight).unflatten(1, (-1, 32))
    groups = weight.unflatten(1, (-1, 32))
    steps = (groups.amax(-1).clamp(min=0) - groups.amin(-1).clamp(max=0)) / grid.top
    assert (errors.square().mean(-1) < (steps * (1 + has_integer_zero)).square() / 5).all()
    if has_integer_zero:
        zeros = -rounded.fitted.low / rounded.fitted.scale
        assert (zeros - zeros.round()).abs().max() < 1e-3
        assert 0 <= zeros.min() <= zeros.max() <= grid.top


def test_groups_of_one_number_are_kept() -> None:
    weight = torch.cat([torch.full((3, 32), 0.25), torch.zeros(2, 32), torch.full((3, 32), -2.0)])
    for grid in (AffineGrid(4, 32, torch.float16), FloatGrid(), AffineGrid(4, 32, torch.float16, finds_zero=True)):
        torch.testing.assert_close(restore(round_plain(weight, grid), grid), weight)


def test_half_quadratic_zeros_leave_smaller_typical_errors() -> None:
    """They are chosen by a norm below 1: outliers may lose."""
    weight = draw(ROWS, INPUTS) ** 3
    plain, moved = (AffineGrid(4, 32, torch.float32, finds_zero=each) for each in (False, True))
    sizes = [(restore(round_plain(weight, grid), grid) - weight).abs() ** 0.7 for grid in (plain, moved)]
    assert sizes[1].mean() < sizes[0].mean()


def test_microscaled_floats_lose_no_more_than_those_of_mlx() -> None:
    weight, grid = draw(ROWS, INPUTS), FloatGrid()
    words, scales, *_ = mx.quantize(mx.array(weight.numpy()), 32, 4, mode="mxfp4")
    theirs = torch.from_numpy(np.array(mx.dequantize(words, scales, None, 32, 4, mode="mxfp4").astype(mx.float32)))
    errors = [(found - weight).square().mean() for found in (restore(round_plain(weight, grid), grid), theirs)]
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("grid", [AffineGrid(4, 32, torch.float16), FloatGrid()])
def test_outputs_change_less_if_inputs_are_known(grid: Grid) -> None:
    weight, mixing = draw(ROWS, INPUTS), draw(INPUTS, INPUTS)
    inputs = draw(2000, INPUTS) @ mixing
    inputs[:, 7] = 0
    products = inputs.T @ inputs
    kept = products.clone()
    plain, known = round_plain(weight, grid), round_by_inputs(weight, products, grid)
    changed = [(inputs @ (restore(each, grid) - weight).T).square().mean() for each in (plain, known)]
    assert changed[1] < changed[0] * 0.7
    assert torch.equal(products, kept)
