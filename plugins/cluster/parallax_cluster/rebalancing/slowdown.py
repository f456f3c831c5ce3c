"""Estimates how many times slower a node computes than predicted, and when that is worth another plan."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from math import exp, isfinite, log
from statistics import median

from parallax_cluster.rebalancing.batch_sizes import BatchSizes

MOST_INTERVALS = 1200
"""The intervals that are kept: enough for the longest while."""
MOST_STRIKES = 5
"""The most changes that are remembered, each of which doubles the while until the next."""
RECENT = 3
"""The latest intervals that steps of a new size are compared with."""
MOST = 64.0
"""The most times that a node counts as slower, or as faster, than predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowdownRules:
    """When a node counts as slower or faster than before."""

    interval_s: float = 1.0
    """Seconds whose steps are judged together, by their median."""
    span_s: float = 25.0
    """Seconds for which it must go on: longer than a stutter of 20 s, and short enough to plan again within 30 s."""
    min_intervals: int = 10
    """The least intervals with steps in that time; rare steps take longer to judge."""
    share: float = 0.92
    """The share of these intervals that must agree."""
    tolerance: float = 1.4
    """How many times slower or faster makes a difference; twice as slow does, also where a prediction was a bit off."""
    calm_s: float = 1800.0
    """Seconds without a change after which one change less is remembered."""
    forget_s: float = 300.0
    """Seconds without steps after which a slow node that has no layers is tried again; longer after each change."""


USUAL = SlowdownRules()


@dataclass(slots=True)
class SlowdownEstimator:
    """Estimates the slowdown of one node from measured and predicted step times; times are given, not read.

    An interval is judged by the median of its steps, so that single slow steps do not count. The slowdown changes only
    if nearly all intervals of a while differ from it in the same direction. Each change doubles the while that the next
    one takes, so that a node that is slow again and again moves layers ever more rarely. The first one only finds how
    far the prediction is off, and does not count.

    A node that was never slow, and takes less time than predicted, was measured while its machine did other work, or is
    of a kind that is predicted badly. Later plans count with that, and no plan is due for it.
    """

    rules: SlowdownRules = USUAL
    factor: float = 1.0
    """How many times longer its steps take than predicted."""
    _sizes: BatchSizes = field(default_factory=BatchSizes)
    _begun: float | None = None
    """When the interval began that goes on; None: there was no step."""
    _intervals: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_INTERVALS))
    """When each interval began, and its median."""
    is_calibrated: bool = False
    """Whether the steps have shown how far the prediction is off."""
    _strikes: int = 0
    _changed: float | None = None

    def note(self, num_tokens: int, predicted_s: float, measured_s: float, now: float) -> bool:
        """Note a step of ``num_tokens`` tokens, and return whether `factor` has changed so that a plan is due.

        Steps without a time are left out.
        """
        is_due = False
        if self._begun is not None and now >= self._begun + self.rules.interval_s:
            is_due = self._conclude(self._begun, now)
        if self._begun is None:
            self._begun = now
        ratio = measured_s / predicted_s if predicted_s > 0 else 0.0
        if isfinite(ratio) and ratio > 0:
            self._sizes.note(num_tokens, log(ratio))
        return is_due

    def forget(self, now: float) -> bool:
        """Return whether a slow node without layers counts as fast again after a while, so that a plan may try it."""
        if self.factor <= self.rules.tolerance or self._begun is None:
            return False
        if now < self._begun + self.rules.forget_s * 2**self._strikes:
            return False
        self._strikes = min(MOST_STRIKES, self._strikes + 1)
        self._sizes.clear()
        self._change(1.0)
        self.is_calibrated = False
        return True

    def _conclude(self, begun: float, now: float) -> bool:
        """End the interval, and return whether the factor has changed so that a plan is due."""
        self._begun = now
        value = self._sizes.conclude(self._find_level())
        if value is None:
            return False
        self._intervals.append((begun, value))
        if self._strikes and self._changed is not None and now >= self._changed + self.rules.calm_s:
            self._strikes, self._changed = self._strikes - 1, now
        return self._judge(now)

    def _judge(self, now: float) -> bool:
        values = self._list_latest(self.rules.span_s * (2**self._strikes if self.is_calibrated else 1))
        if not values:
            return False
        edge, level, middle = log(self.rules.tolerance), log(self.factor), median(values)
        enough = self.rules.share * len(values)
        is_slower = sum(value > level + edge for value in values) >= enough
        is_faster = sum(value < level - edge for value in values) >= enough
        is_due = is_slower or (is_faster and level > edge)
        if is_due and self.is_calibrated:
            self._strikes, self._changed = min(MOST_STRIKES, self._strikes + 1), now
        is_steady = sum(abs(value - middle) < edge / 2 for value in values) >= enough
        if is_slower or is_faster or (is_steady and not self.is_calibrated):
            self._change(exp(middle))
        return is_due or (not self.is_calibrated and self._calibrate())

    def _calibrate(self) -> bool:
        """Find the error of the prediction where steps vary too much to agree; return whether a plan is due."""
        values = self._list_latest(2 * self.rules.span_s)
        if not values:
            return False
        middle = median(values)
        self._change(exp(middle))
        return middle > log(self.rules.tolerance)

    def _change(self, factor: float) -> None:
        self.factor = min(max(factor, 1 / MOST), MOST)
        self.is_calibrated = True
        self._intervals.clear()

    def _list_latest(self, span_s: float) -> list[float]:
        """Return the medians of the latest intervals: enough of them over enough time, or none."""
        values: list[float] = []
        for begun, value in reversed(self._intervals):
            values.append(value)
            if len(values) >= self.rules.min_intervals and self._intervals[-1][0] - begun >= span_s:
                return values
        return []

    def _find_level(self) -> float | None:
        """Return the logarithm that the latest intervals agree on; None: there was none."""
        latest = [value for _, value in islice(reversed(self._intervals), RECENT)]
        if latest:
            return median(latest)
        return log(self.factor) if self.is_calibrated else None
