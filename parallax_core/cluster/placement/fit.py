"""Contiguous shares for stages that are not equally fast."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange


def fit_layers(
    weights: Sequence[int], rates: Sequence[float], rooms: Sequence[float] = (), sizes: Sequence[int] = ()
) -> tuple[LayerRange, ...]:
    """Return the layers of each stage, such that the slowest stage is as fast as can be: it sets the pace.

    Of splits that are equally good, one that gives early stages more. Dynamic programming over the layers before each
    cut, as PipeDream does for stages of different speed (SOSP 2019, section 3.1).

    Args:
        weights: what each layer costs, in any unit.
        rates: what a unit costs each stage, in any unit.
        rooms: how much of the sizes each stage can hold; empty: any.
        sizes: of the layers; empty: their weights.

    Raises:
        UsageError: if there are more stages than layers, or there is not room for all.
    """
    num_stages, num_layers = len(rates), len(weights)
    if num_stages > num_layers:
        message = f"{num_stages} stages are asked for, and the model has {num_layers} layers"
        raise UsageError(message, f"ask for at most {num_layers} stages")
    sums = list(zip([0, *accumulate(weights)], [0, *accumulate(sizes or weights)], strict=True))
    rooms = rooms or [inf] * num_stages
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    """For each number of layers that the stages so far can have: the slowest of them, and the cuts."""
    for stage in range(num_stages):
        best = _extend(best, sums, rates[stage], rooms[stage])
    if num_layers not in best:
        raise UsageError("the nodes together have too little memory for the model", "add nodes, or free memory on them")
    return tuple(LayerRange(start, stop) for start, stop in pairwise(best[num_layers][1]))


def _extend(
    best: dict[int, tuple[float, tuple[int, ...]]], sums: Sequence[tuple[int, int]], rate: float, room: float
) -> dict[int, tuple[float, tuple[int, ...]]]:
    """Return the best ways once more stage has its layers."""
    longer: dict[int, tuple[float, tuple[int, ...]]] = {}
    for start, (slowest, cuts) in best.items():
        for stop in range(start + 1, len(sums)):
            weight, size = (end - begin for begin, end in zip(sums[start], sums[stop], strict=True))
            if size > room:
                break
            pace = max(slowest, weight * rate)
            if stop not in longer or pace < longer[stop][0]:
                longer[stop] = (pace, (*cuts, stop))
    return longer
