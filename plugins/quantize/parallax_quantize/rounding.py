"""Rounds a matrix to grids: each weight by itself, or as GPTQ, which knows the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_quantize.grids import FEW_BITS, Fitted, Grid
from parallax_quantize.least_squares import DAMPING, fit_grids

MOST_DAMPING = 1.0
BLOCK = 64
"""Inputs whose errors are passed on to the others together."""
ROWS = 4096
"""Rows that are rounded at once without inputs, which bounds the memory."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [out, in] in a format."""

    codes: torch.Tensor
    """uint8 [out, in]."""
    fitted: Fitted


def round_plain(weight: torch.Tensor, grid: Grid) -> Rounded:
    """Round each weight of a matrix [out, in] to the nearest number of its group's grid."""
    parts = [_round_rows(rows.float(), grid) for rows in weight.split(ROWS)]
    scales, lows = (torch.cat([getattr(part.fitted, name) for part in parts]) for name in ("scale", "low"))
    return Rounded(torch.cat([part.codes for part in parts]), Fitted(scales, lows))


def round_by_inputs(weight: torch.Tensor, products: torch.Tensor, grid: Grid) -> Rounded:
    """Round a matrix so that its outputs change least.

    Codes are chosen by GPTQ (arXiv 2210.17323), those of the largest inputs first. Then the grids of few bits
    become those that fit these codes best, by least squares; and both once more.

    Args:
        weight: [out, in].
        products: the sum of the products of inputs with each other, float32 [in, in].
        grid: what the format has.
    """
    weight = weight.float().clone()
    weight[:, products.diagonal() == 0] = 0  # inputs that are always 0
    order = products.diagonal().argsort(descending=True)
    factor = _factor_inverse(products[order][:, order])
    fitted = grid.fit(weight.unflatten(1, (-1, grid.group)), products.diagonal().unflatten(0, (-1, grid.group)))
    codes = _choose_codes(weight, order, factor, grid, fitted)
    if grid.bits > FEW_BITS:
        return Rounded(codes, fitted)
    fitted = fit_grids(weight, products, codes, grid, fitted)
    codes = _choose_codes(weight, order, factor, grid, fitted)
    return Rounded(codes, fit_grids(weight, products, codes, grid, fitted))


def _choose_codes(
    weight: torch.Tensor, order: torch.Tensor, factor: torch.Tensor, grid: Grid, fitted: Fitted
) -> torch.Tensor:
    """Return codes of given grids, chosen in an order of the inputs; ``factor`` has it, see `_factor_inverse`."""
    codes, left = torch.empty(weight.shape, dtype=torch.uint8), weight[:, order]
    for start in range(0, len(order), BLOCK):
        own = factor[start : start + BLOCK, start : start + BLOCK]
        columns, errors = left[:, start : start + BLOCK].T.contiguous(), torch.empty(len(own), len(weight))
        for column, given in enumerate(columns):
            place = int(order[start + column])
            one = Fitted(fitted.scale[:, place // grid.group], fitted.low[:, place // grid.group])
            code = grid.encode(given[:, None], one)
            codes[:, place] = code[:, 0]
            errors[column] = (given - grid.decode(code, one)[:, 0]) / own[column, column]
            columns[column:].addcmul_(own[column, column:, None], errors[column], value=-1)
        left[:, start + BLOCK :].addmm_(errors.T, factor[start : start + BLOCK, start + BLOCK :], alpha=-1)
    return codes


def restore(rounded: Rounded, grid: Grid) -> torch.Tensor:
    """Return the weights of a rounded matrix, float32 [out, in]."""
    return grid.decode(rounded.codes.unflatten(1, (-1, grid.group)), rounded.fitted).flatten(1)


def _round_rows(rows: torch.Tensor, grid: Grid) -> Rounded:
    groups = rows.unflatten(1, (-1, grid.group))
    fitted = grid.fit(groups)
    return Rounded(grid.encode(groups, fitted).flatten(1), fitted)


def _factor_inverse(products: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of damped products; float32 [in, in]."""
    damping, mean = DAMPING, products.diagonal().mean().double()
    while True:
        damped = products.double()
        damped.diagonal().add_(damping * mean + (products.diagonal() == 0))
        factor, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
        if not failed:  # with both orders turned back, it is upper, and times its transpose the products
            identity = torch.eye(len(damped), dtype=torch.float64)
            return torch.linalg.solve_triangular(factor.flip(0, 1), identity, upper=True).float()
        damping *= 10
        if damping > MOST_DAMPING:
            raise ValueError("the inputs of a matrix are not finite")
