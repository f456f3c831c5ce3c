"""How long a step may take on a stage before the stage counts as hung."""

from __future__ import annotations

import math
from collections import deque

LEAST_S = 60.0
"""No limit is shorter, unless a user says so."""
TIMES = 20
"""A step may take so many times as long as the longest recent one of its size."""
RECENT = 64
"""So many of the last steps of a size count."""
STRETCH = 4
"""A step of a size not seen yet may take so many times what its tokens make of the longest smaller one."""
TOKEN_S = 1.0
"""What each token adds to the limit while there has been no step at all to compare with."""


class StepLimit:
    """The limit for the steps of one stage, from the steps it has finished.

    Steps whose numbers of tokens have as many binary digits are of one size. For a size that has not been seen, the
    next smaller one counts, stretched by its tokens, or else the smallest there is.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        """Begin without any step; ``fixed_s`` is the limit for all, if a user has set one."""
        self._fixed_s = fixed_s
        self._recent: dict[int, deque[float]] = {}

    def note(self, num_tokens: int, seconds: float) -> None:
        """Take in a step that was finished."""
        self._recent.setdefault(num_tokens.bit_length(), deque(maxlen=RECENT)).append(seconds)

    def find(self, num_tokens: int) -> float:
        """Return for how many seconds a step of so many tokens may be computed."""
        if self._fixed_s is not None:
            return self._fixed_s
        if not self._recent:
            return LEAST_S + TOKEN_S * num_tokens
        size = num_tokens.bit_length()
        known = max((each for each in self._recent if each <= size), default=min(self._recent))
        longest = max(self._recent[known])
        return max(LEAST_S, TIMES * longest, math.ldexp(STRETCH * longest, size - known))
