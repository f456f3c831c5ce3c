"""Grids that are fitted to codes change outputs less than those that the codes were chosen by."""

from __future__ import annotations

import pytest
import torch

from parallax_quantize.grids import AffineGrid, FloatGrid, Grid
from parallax_quantize.least_squares import fit_grids
from parallax_quantize.rounding import Rounded, restore, round_plain

GRIDS = [AffineGrid(4, 32, torch.float32), AffineGrid(4, 32, torch.float32, has_integer_zero=True)]


def draw(rows: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix, and inputs that depend on each other."""
    random = torch.Generator().manual_seed(4)
    mixed = torch.randn(400, inputs, generator=random) @ torch.randn(inputs, inputs, generator=random)
    return torch.randn(rows, inputs, generator=random), mixed


def measure(weight: torch.Tensor, inputs: torch.Tensor, rounded: Rounded, grid: Grid) -> float:
    return float((inputs @ (restore(rounded, grid) - weight).T).square().mean())


@pytest.mark.parametrize("grid", GRIDS)
def test_outputs_change_less(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, inputs = draw(24, 96)
    before = round_plain(weight, grid)
    fitted = fit_grids(weight, inputs.T @ inputs, before.codes, grid, before.fitted)
    after = Rounded(before.codes, fitted)
    assert measure(weight, inputs, after, grid) < 0.95 * measure(weight, inputs, before, grid)
    monkeypatch.setattr("parallax_quantize.least_squares.MOST_NUMBERS", 1)
    again = fit_grids(weight, inputs.T @ inputs, before.codes, grid, before.fitted)
    torch.testing.assert_close(restore(Rounded(before.codes, again), grid), restore(after, grid))


def test_grids_are_those_of_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_quantize.least_squares.DAMPING", 0)
    (weight, inputs), grid = draw(3, 96), GRIDS[0]
    before = round_plain(weight, grid)
    fitted = fit_grids(weight, inputs.T @ inputs, before.codes, grid, before.fitted)
    for row, given in enumerate(weight):
        codes = before.codes[row].double().unflatten(0, (3, 32))
        columns = torch.cat([torch.block_diag(*codes), torch.block_diag(*torch.ones(3, 32, dtype=torch.float64))])
        wanted = torch.linalg.lstsq(inputs.double() @ columns.T, inputs.double() @ given.double()).solution
        found = torch.cat([fitted.scale[row], fitted.low[row]]).double()
        torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("grid", GRIDS)
def test_groups_that_say_nothing_stay_finite(grid: Grid) -> None:
    weight, inputs = draw(8, 96)
    weight[:, :32], weight[3], inputs[:, 64:] = 0.5, 0, 0
    before = round_plain(weight, grid)
    fitted = fit_grids(weight, inputs.T @ inputs, before.codes, grid, before.fitted)
    found = restore(Rounded(before.codes, fitted), grid)
    torch.testing.assert_close(found[:, :32], weight[:, :32], atol=0.05, rtol=0)
    assert found.isfinite().all()
    assert not found[3].any()


def test_powers_of_two_are_kept() -> None:
    weight, inputs = draw(8, 96)
    before = round_plain(weight, FloatGrid())
    assert fit_grids(weight, inputs.T @ inputs, before.codes, FloatGrid(), before.fitted) is before.fitted
