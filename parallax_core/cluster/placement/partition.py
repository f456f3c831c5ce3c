"""Divides the layers of a model among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import add

from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange

Table = Sequence[Sequence[float]]
"""The cost of a range of layers on a stage, by its end and then by its start below that; infinite: there is no room."""


def split_layers(
    num_layers: int, num_stages: int, weights: Sequence[int] = (), illegal: Collection[int] = ()
) -> tuple[LayerRange, ...]:
    """Return the layers of each of equally fast stages, such that the heaviest stage is as light as possible.

    Among such splits it is one with the least sum of squared weights, so that the other stages are even, too; of two
    equally good splits, the one that gives more layers to early stages.

    Args:
        num_layers: of the model.
        num_stages: at least 1.
        weights: the cost of each layer, 0 or more in any unit; empty: all the same.
        illegal: the layers with which no stage may begin.

    Raises:
        UsageError: if there are more stages than layers, or than legal cuts allow.
        ValueError: if ``weights`` does not have one number for each layer, or one is below 0.
    """
    check_cuts(num_layers, num_stages, illegal)
    weights = weights or [1] * num_layers
    if len(weights) != num_layers or min(weights) < 0:
        message = f"{num_layers} layers need as many weights of 0 or more, not {list(weights)}"
        raise ValueError(message)
    sums = [0, *accumulate(weights)]
    table = forbid_cuts(tabulate(lambda start, stop: sums[stop] - sums[start], num_layers), illegal)
    heaviest, _ = search_cuts([table] * num_stages, max) or (inf, ())
    squares = [[weight**2 if weight <= heaviest else inf for weight in column] for column in table]
    _, cuts = search_cuts([squares] * num_stages, add, prefers_late_cuts=True) or (inf, ())
    return make_ranges(cuts)


def check_cuts(num_layers: int, num_stages: int, illegal: Collection[int]) -> None:
    """Raise UsageError if there are more stages than layers, or than legal cuts allow."""
    most = num_layers - len(illegal)
    if num_stages > num_layers:
        message = f"{num_stages} stages are asked for, and the model has {num_layers} layers"
        raise UsageError(message, f"ask for at most {num_layers} stages")
    if num_stages > most:
        message = f"{num_stages} stages are asked for, and the model can be cut into at most {most}: "
        message += "some of its layers read what others keep"
        raise UsageError(message, f"ask for at most {most} stages")


def forbid_cuts(table: Table, illegal: Collection[int]) -> Table:
    """Return a table without the ranges that begin or end at an illegal cut."""
    if not illegal:
        return table
    return [
        [inf if stop in illegal or start in illegal else cost for start, cost in enumerate(column)]
        for stop, column in enumerate(table)
    ]


def tabulate(cost: Callable[[int, int], float], num_layers: int) -> Table:
    """Return what each range of layers costs, from its start and its end."""
    return [[cost(start, stop) for start in range(stop)] for stop in range(num_layers + 1)]


def search_cuts(
    tables: Sequence[Table], combine: Callable[[float, float], float], *, prefers_late_cuts: bool = False
) -> tuple[float, tuple[int, ...]] | None:
    """Return the least cost and its boundaries, by dynamic programming over prefixes of layers; None if none fit.

    PipeDream does so for stages of different speed (SOSP 2019, section 3.1).

    Args:
        tables: of the stages, at most as many as layers.
        combine: the cost of all stages from that of those before and that of one more.
        prefers_late_cuts: of two equally good boundaries, whether to take the later.
    """
    num_layers = len(tables[0]) - 1
    before, origins = [0.0, *[inf] * num_layers], list[list[int]]()
    for table in tables:
        totals, origin = [inf], [0]
        for column in table[1:]:
            sums = list(map(combine, before, column))
            least = min(sums)
            totals.append(least)
            origin.append(len(sums) - 1 - sums[::-1].index(least) if prefers_late_cuts else sums.index(least))
        origins.append(origin)
        before = totals
    cuts = [num_layers]
    for origin in reversed(origins):
        cuts.append(origin[cuts[-1]])
    return (before[-1], tuple(reversed(cuts))) if before[-1] < inf else None


def make_ranges(cuts: Sequence[int]) -> tuple[LayerRange, ...]:
    """Return the ranges between boundaries."""
    return tuple(LayerRange(start, stop) for start, stop in pairwise(cuts))
