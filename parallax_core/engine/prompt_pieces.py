"""Chooses the pieces of a lone prompt, which several stages compute one behind the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

LEAST_PIECE = 64
"""The fewest tokens of a piece before a step with as many was measured."""
MOST_PIECES = 64
"""The most pieces beyond those that a step holds."""
WORTH_CUTTING = 0.95
"""A prompt is cut if its first token then comes within this share of the time."""

Typical = Sequence[tuple[int, float]]
"""The tokens and the seconds of typical steps of a stage, by tokens."""


class Pace(NamedTuple):
    """How steps follow each other."""

    links_s: float
    """The seconds of a step on all links."""
    most_in_flight: int
    crowding: float = 1.0
    """How many times as long as alone a step takes while all compute: those of a machine may share processors."""


def choose_piece(stages: Sequence[Typical], num_tokens: int, most: int, pace: Pace) -> int:
    """Return the tokens of each piece, such that all stages have soonest computed all of them.

    The last stage begins when the first piece has passed the others; from then on each piece takes as long as on the
    slowest stage, or waits until one of those in flight is back. ``stages`` has what each measured, and ``most`` the
    tokens of a step.
    """
    if any(not known or known[-1][0] < LEAST_PIECE for known in stages):
        return max(LEAST_PIECE, -(-num_tokens // len(stages)))

    def measure(count: int) -> float:
        times = [predict_step(known, -(-num_tokens // count)) for known in stages]
        through_s = sum(times) + pace.links_s
        return through_s + (count - 1) * max(*times, through_s / pace.most_in_flight)

    fewest = -(-num_tokens // most)
    best = min(range(fewest, fewest + MOST_PIECES), key=measure)
    return -(-num_tokens // (best if pace.crowding * measure(best) < WORTH_CUTTING * measure(fewest) else fewest))


def predict_step(known: Typical, num_tokens: int) -> float:
    """Return the seconds of a step: on the line through the typical ones beside it, or nearest to it.

    If the larger one has at most twice as many tokens, it is the least that it may take, so that it is tried.
    """
    place = min(bisect_left(known, (num_tokens,)), len(known) - 1)
    many, many_s = known[place]
    proportional_s = many_s * num_tokens / many
    if place == 0 or num_tokens > 2 * many:
        return max(many_s, proportional_s)
    few, few_s = known[place - 1]
    line_s = few_s + max(0.0, many_s - few_s) * (num_tokens - few) / (many - few)
    return min(line_s, max(few_s, proportional_s)) if 2 * num_tokens >= many else line_s
