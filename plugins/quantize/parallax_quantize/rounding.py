"""Rounds a matrix to grids: each weight by itself, or as GPTQ, which knows the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_quantize.grids import Fitted, Grid

DAMPING = 0.03
"""The share of its mean that is added to the diagonal of products of inputs."""
MOST_DAMPING = 1.0
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
    """Round a matrix so that its outputs change least: GPTQ (arXiv 2210.17323).

    Args:
        weight: [out, in].
        products: the sum of the products of inputs with each other, float32 [in, in].
        grid: what the format has.
    """
    weight, group = weight.float().clone(), grid.group
    weight[:, products.diagonal() == 0] = 0  # inputs that are always 0
    factor = _factor_inverse(products)
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    fits = []
    for start in range(0, weight.shape[1], group):
        own = factor[start : start + group, start : start + group]
        fitted = grid.fit(weight[:, start : start + group])
        columns, errors = weight[:, start : start + group].T.contiguous(), torch.empty(group, len(weight))
        for column, given in enumerate(columns):
            code = grid.encode(given[:, None], fitted)
            codes[:, start + column] = code[:, 0]
            errors[column] = (given - grid.decode(code, fitted)[:, 0]) / own[column, column]
            columns[column:].addr_(own[column, column:], errors[column], alpha=-1)
        weight[:, start + group :].addmm_(errors.T, factor[start : start + group, start + group :], alpha=-1)
        fits.append(fitted)
    return Rounded(
        codes, Fitted(*(torch.stack([getattr(each, name) for each in fits], 1) for name in ("scale", "low")))
    )


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
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed:
                return upper.float()
        damping *= 10
        if damping > MOST_DAMPING:
            raise ValueError("the inputs of a matrix are not finite")
