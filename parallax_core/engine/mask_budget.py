"""Bounds the time that the masks of one request take."""

from __future__ import annotations

MOST_MASK_S = 0.05
"""Seconds of a processor that one mask may take. Those of usual grammars take some microseconds, and at most 6 ms."""
ALLOWANCE_S = 1.0
"""Seconds of a processor that the masks of all answers to a request may take together, whatever their number."""
TOKEN_S = 0.002
"""The same for each token that a mask follows, besides."""
QUICK_S = 0.001
"""The longest mask, in seconds on average, for which others wait a moment; see `Readiness.hold_s`."""
WEIGHT = 0.25
"""The weight of the latest mask in that average."""
TOO_LONG = "the grammar cannot be followed: {}; make it less ambiguous"
"""The error for clients whose grammars take too long."""


class MaskBudget:
    """Counts the time that masks have taken, for all answers to a request together."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._allowance_s = ALLOWANCE_S
        self._average_s: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether a mask was made."""
        return self._average_s is not None

    @property
    def is_quick(self) -> bool:
        """Whether the masks made lately were quick; also false before the first."""
        return self._average_s is not None and self._average_s <= QUICK_S

    def note(self, seconds: float, num_tokens: int) -> str:
        """Count a mask that took ``seconds`` of a processor, with the ``num_tokens`` tokens that it followed.

        Returns:
            Why the request has to end, for its client: the grammar takes too long to follow. Empty: it goes on.
        """
        self._spent_s += seconds
        self._allowance_s += num_tokens * TOKEN_S
        latest = seconds / max(1, num_tokens)
        self._average_s = latest if self._average_s is None else self._average_s + WEIGHT * (latest - self._average_s)
        if seconds > (most_s := MOST_MASK_S + num_tokens * TOKEN_S):
            return TOO_LONG.format(f"a token took {1000 * seconds:.3g} ms, and may take {1000 * most_s:.3g} ms")
        if self._spent_s > self._allowance_s:
            return TOO_LONG.format(f"it has taken {self._spent_s:.3g} s, and may take {self._allowance_s:.3g} s")
        return ""
