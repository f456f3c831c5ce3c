"""Fits the grids of a matrix to its codes, so that its outputs change least."""

from __future__ import annotations

import torch

from parallax_quantize.grids import Fitted, Grid

DAMPING = 0.01
"""The share of its mean that is added to the diagonal of products of inputs."""
LEAST_SHARE, LEAST = 1e-6, 1e-12
"""The share of its mean, and the number, that are added to the diagonal of a row's equations."""
MOST_NUMBERS = 2**24
"""Numbers in memory for the rows whose equations are made at once."""


def fit_grids(weight: torch.Tensor, products: torch.Tensor, codes: torch.Tensor, grid: Grid, fitted: Fitted) -> Fitted:
    """Return the grids of all groups that fit codes best, as the format stores them.

    Args:
        weight: float32 [out, in].
        products: the sum of the products of inputs with each other, float32 [in, in].
        codes: uint8 [out, in].
        grid: what the format has.
        fitted: the grids that the codes were chosen by; returned if the format stores no others.
    """
    bases = grid.list_bases(codes.unflatten(1, (-1, grid.group)), fitted)
    if not bases:
        return fitted
    damped = products.clone()
    damped.diagonal().add_(DAMPING * products.diagonal().mean())
    groups = weight.shape[1] // grid.group
    rows = max(1, MOST_NUMBERS // (len(bases) * groups * weight.shape[1]))
    parts = [
        _solve(part, damped, torch.stack(base, 1))
        for part, *base in zip(weight.split(rows), *(each.split(rows) for each in bases), strict=True)
    ]
    return grid.store(torch.cat(parts).unbind(1), fitted)


def _solve(weight: torch.Tensor, products: torch.Tensor, bases: torch.Tensor) -> torch.Tensor:
    """Return the share of each base, float32 [rows, bases, groups], such that their sums are nearest to weights.

    Args:
        weight: [rows, in].
        products: [in, in].
        bases: [rows, bases, groups, inputs of a group].
    """
    rows, kinds, groups, width = bases.shape
    given = torch.einsum("rkiq,iqn->rkin", bases, products.unflatten(0, (groups, width))).unflatten(3, (groups, width))
    sides = torch.einsum("rkijq,rljq->rkilj", given, bases).reshape(rows, kinds * groups, -1).double()
    wanted = (bases * (weight @ products).unflatten(1, (1, groups, width))).sum(-1).flatten(1).double()
    diagonal = sides.diagonal(dim1=1, dim2=2)
    diagonal.add_(LEAST_SHARE * diagonal.mean(1, keepdim=True) + LEAST)
    return torch.linalg.solve(sides, wanted).float().unflatten(1, (kinds, groups))
