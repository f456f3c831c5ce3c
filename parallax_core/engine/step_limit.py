"""Keeps the times of a stage's steps, and derives the limit after which it counts as hung."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from statistics import median_low

LEAST_S = 60.0
"""The shortest derived limit, in seconds."""
TIMES = 20
"""The limit as a multiple of the longest recent step of the same size."""
RECENT = 64
"""The number of recent steps of each size that count."""
STRETCH = 4
"""For a size not seen yet: the limit as a multiple of the longest smaller step, scaled by its tokens."""
TYPICAL = 4
"""The number of recent steps of a size whose median is typical of it: the first one may take far longer."""
TOKEN_S = 1.0
"""Seconds added to the limit for each token before any step has finished."""


class StepLimit:
    """The limit for the steps of one stage, from the steps it has finished.

    Steps whose numbers of tokens have the same number of binary digits are of one size. For a size not seen yet, the
    next smaller one counts, scaled by its tokens, or else the smallest known one.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[tuple[float, int]]] = {}
        """The seconds and the tokens of recent steps by size."""

    def note(self, num_tokens: int, seconds: float) -> None:
        """Record a finished step."""
        self._recent.setdefault(num_tokens.bit_length(), deque(maxlen=RECENT)).append((seconds, num_tokens))

    def find(self, num_tokens: int) -> float:
        """Return the limit for a step of ``num_tokens`` tokens, in seconds."""
        if not self._recent:
            return LEAST_S + TOKEN_S * num_tokens
        size = num_tokens.bit_length()
        known = max((each for each in self._recent if each <= size), default=min(self._recent))
        longest, _ = max(self._recent[known])
        return max(LEAST_S, TIMES * longest, math.ldexp(STRETCH * longest, size - known))

    def list_typical(self) -> list[tuple[int, float]]:
        """Return the tokens and the seconds of a typical recent step of each size, by tokens."""
        typical = (median_low(islice(reversed(recent), TYPICAL)) for recent in self._recent.values())
        return sorted((num_tokens, seconds) for seconds, num_tokens in typical)
