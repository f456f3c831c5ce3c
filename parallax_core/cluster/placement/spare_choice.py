"""Chooses the stages that spare nodes are loaded for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")


def choose_spare(costs: Mapping[Key, float], spares: Counter[Key]) -> Key:
    """Return the kind of stage for which one more spare helps most.

    Args:
        costs: for each kind of stage, what the loss of one costs times the number of such stages; not empty.
        spares: the number of spares that each kind has.

    Spares are dealt out by D'Hondt's method: the next one goes to the kind with the largest cost divided by one more
    than the number of its spares. Among equals, the first in ``costs`` gets it.
    """
    return max(costs, key=lambda kind: costs[kind] / (spares[kind] + 1))
