"""Divides the layers of a model among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import add

from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange

Cost = Callable[[int, int, int], float | None]
"""Returns the cost of the layers from ``start`` to ``stop`` on ``stage``; None: the stage cannot hold them."""
Best = dict[int, tuple[float, tuple[int, ...]]]
"""By the number of layers of the stages so far: the least cost, and the boundaries."""


def split_layers(num_layers: int, num_stages: int, weights: Sequence[int] = ()) -> tuple[LayerRange, ...]:
    """Return the layers of each of equally fast stages, such that the heaviest stage is as light as possible.

    Among such splits it is one with the least sum of squared weights, so that the other stages are even, too; of two
    equally good splits, the one that gives more layers to early stages.

    Args:
        num_layers: of the model.
        num_stages: at least 1.
        weights: the cost of each layer, 0 or more in any unit; empty: all the same.

    Raises:
        UsageError: if there are more stages than layers.
        ValueError: if ``weights`` does not have one number for each layer, or one is below 0.
    """
    _check_count(num_layers, num_stages)
    weights = weights or [1] * num_layers
    if len(weights) != num_layers or min(weights) < 0:
        message = f"{num_layers} layers need as many weights of 0 or more, not {list(weights)}"
        raise ValueError(message)
    sums = [0, *accumulate(weights)]

    def weigh(_stage: int, start: int, stop: int) -> int:
        return sums[stop] - sums[start]

    heaviest, _ = search_cuts(num_layers, num_stages, weigh, max)[num_layers]

    def square(_stage: int, start: int, stop: int) -> int | None:
        weight = sums[stop] - sums[start]
        return weight**2 if weight <= heaviest else None

    _, cuts = search_cuts(num_layers, num_stages, square, add, prefers_late_cuts=True)[num_layers]
    return _make_ranges(cuts)


def fit_layers(
    weights: Sequence[int], rates: Sequence[float], rooms: Sequence[float] = (), sizes: Sequence[int] = ()
) -> tuple[LayerRange, ...]:
    """Return the layers of each stage, such that the slowest stage is as fast as possible: it sets the pace.

    Args:
        weights: the cost of each layer, in any unit.
        rates: the time each stage takes for one unit of cost, in any unit.
        rooms: the total size each stage can hold; empty: unlimited.
        sizes: the size of each layer; empty: its weight.

    Raises:
        UsageError: if there are more stages than layers, or the stages cannot hold all layers.
    """
    num_stages, num_layers = len(rates), len(weights)
    _check_count(num_layers, num_stages)
    sums, size_sums = [0, *accumulate(weights)], [0, *accumulate(sizes or weights)]
    limits = rooms or [inf] * num_stages

    def time(stage: int, start: int, stop: int) -> float | None:
        if size_sums[stop] - size_sums[start] > limits[stage]:
            return None
        return (sums[stop] - sums[start]) * rates[stage]

    best = search_cuts(num_layers, num_stages, time, max)
    if num_layers not in best:
        raise UsageError("the nodes together have too little memory for the model", "add nodes, or free memory on them")
    return _make_ranges(best[num_layers][1])


def _check_count(num_layers: int, num_stages: int) -> None:
    if num_stages > num_layers:
        message = f"{num_stages} stages are asked for, and the model has {num_layers} layers"
        raise UsageError(message, f"ask for at most {num_layers} stages")


def search_cuts(
    num_layers: int,
    num_stages: int,
    cost: Cost,
    combine: Callable[[float, float], float],
    *,
    prefers_late_cuts: bool = False,
) -> Best:
    """Return the best boundaries, by dynamic programming over the layers before each.

    PipeDream does so for stages of different speed (SOSP 2019, section 3.1).

    Args:
        num_layers: of the model.
        num_stages: at most ``num_layers``.
        cost: of a stage with some layers; it grows with each layer that is added at the end.
        combine: the cost of all stages from that of those before and that of one more.
        prefers_late_cuts: of two equally good boundaries, whether to take the later.
    """
    best: Best = {0: (0, (0,))}
    for stage in range(num_stages):
        longer: Best = {}
        last = num_layers - (num_stages - 1 - stage)
        for start in sorted(best, reverse=prefers_late_cuts):
            before, cuts = best[start]
            for stop in range(start + 1, last + 1):
                more = cost(stage, start, stop)
                if more is None:
                    break
                total = combine(before, more)
                if stop not in longer or total < longer[stop][0]:
                    longer[stop] = (total, (*cuts, stop))
        best = longer
    return best


def _make_ranges(cuts: Sequence[int]) -> tuple[LayerRange, ...]:
    return tuple(LayerRange(start, stop) for start, stop in pairwise(cuts))
