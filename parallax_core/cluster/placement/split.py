"""Contiguous shares of about the same weight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange


def split_layers(num_layers: int, num_stages: int, weights: Sequence[int] = ()) -> tuple[LayerRange, ...]:
    """Return the layers of each stage, such that the heaviest stage is as light as can be: it sets the pace.

    Among such splits it is one with the least sum of squared weights, so that the other stages are even, too; of two
    that are equally good, the one that gives more layers to early stages.

    Args:
        num_layers: of the model.
        num_stages: at least 1.
        weights: what each layer costs, 0 or more in any unit; empty: the same.

    Raises:
        UsageError: if there are more stages than layers.
        ValueError: if ``weights`` does not have one number for each layer, or one is below 0.
    """
    if num_stages > num_layers:
        message = f"{num_stages} stages are asked for, and the model has {num_layers} layers"
        raise UsageError(message, f"ask for at most {num_layers} stages")
    weights = weights or [1] * num_layers
    if len(weights) != num_layers or min(weights) < 0:
        message = f"{num_layers} layers need as many weights of 0 or more, not {list(weights)}"
        raise ValueError(message)
    sums = [0, *accumulate(weights)]
    cuts = _cut(sums, num_stages, _find_least(sums, num_stages))
    return tuple(LayerRange(start, stop) for start, stop in pairwise(cuts))


def _find_least(sums: Sequence[int], num_stages: int) -> int:
    """Return the least weight that the heaviest stage can have, by bisection."""
    low, high = max(stop - start for start, stop in pairwise(sums)), sums[-1]
    while low < high:
        middle = (low + high) // 2
        if _count_stages(sums, middle) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return low


def _count_stages(sums: Sequence[int], most: int) -> int:
    """Return how many stages there are when each takes as many layers as weigh ``most`` or less."""
    count, begin = 1, 0
    for before, after in pairwise(sums):
        if after - begin > most:
            count, begin = count + 1, before
    return count


def _cut(sums: Sequence[int], num_stages: int, most: int) -> list[int]:
    """Return where stages begin, and where the last ends: dynamic programming over the layers before each cut."""
    end = len(sums) - 1
    best = {0: (0, [0])}
    """For each number of layers that the stages so far can have: the sum of squares, and the cuts."""
    for left in range(num_stages - 1, -1, -1):
        longer: dict[int, tuple[int, list[int]]] = {}
        for stop in range(1, end - left + 1):
            fitting = [start for start in best if start < stop and sums[stop] - sums[start] <= most]
            if fitting:
                squares, start = min((best[start][0] + (sums[stop] - sums[start]) ** 2, -start) for start in fitting)
                longer[stop] = squares, [*best[-start][1], stop]
        best = longer
    return best[end][1]
