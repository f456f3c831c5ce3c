"""Divides the layers of a model among nodes of different speed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import accumulate
from math import inf

from parallax_core.api import LayerRange, UsageError
from parallax_core.cluster.placement.partition import check_cuts, forbid_cuts, make_ranges, search_cuts, tabulate


def fit_layers(
    weights: Sequence[int],
    rates: Sequence[float],
    rooms: Sequence[float] = (),
    sizes: Sequence[int] = (),
    *,
    illegal: Collection[int] = (),
) -> tuple[LayerRange, ...]:
    """Return the layers of each stage, such that the slowest stage is as fast as possible: it sets the pace.

    Args:
        weights: the cost of each layer, in any unit.
        rates: the time each stage takes for one unit of cost, in any unit.
        rooms: the total size each stage can hold; empty: unlimited.
        sizes: the size of each layer; empty: its weight.
        illegal: the layers with which no stage may begin.

    Raises:
        UsageError: if there are more stages than layers or legal cuts allow, or the stages cannot hold all layers.
    """
    num_stages, num_layers = len(rates), len(weights)
    check_cuts(num_layers, num_stages, illegal)
    sums, size_sums = [0, *accumulate(weights)], [0, *accumulate(sizes or weights)]
    limits = rooms or [inf] * num_stages

    def time(rate: float, limit: float, start: int, stop: int) -> float:
        return (sums[stop] - sums[start]) * rate if size_sums[stop] - size_sums[start] <= limit else inf

    stages = zip(rates, limits, strict=True)
    tables = [forbid_cuts(tabulate(partial(time, *stage), num_layers), illegal) for stage in stages]
    best = search_cuts(tables, max)
    if best is None:
        raise UsageError("the nodes together have too little memory for the model", "add nodes, or free memory on them")
    return make_ranges(best[1])
