"""Compares only steps of like sizes, so that a change of load does not look like one of speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from statistics import median

ENOUGH = 5
"""Intervals with steps of a new size from which its own error is found."""
MOST_ERROR = log(3.0)
"""The most that the error of a size may differ from the others': steps beyond that are slow by themselves."""
MOST_SAMPLES = 32
"""The most steps of a size that count in an interval: their median needs no more."""


@dataclass(slots=True)
class BatchSizes:
    """The error of a prediction for each size of a batch; sizes are apart by a factor of two.

    Predictions are right for some sizes and wrong for others: kernels reach another share of the peak with one token
    than with a hundred. The first size counts as right. A new size is compared with those of the same interval, and
    counts from then on. If there are none, it is compared with the last ones: a node that becomes slow just as the load
    becomes another for good, without a step of a known size, is the one that is not noticed.
    """

    _errors: dict[int, float] = field(default_factory=dict)
    """By size: the logarithm of measured over predicted seconds, beyond that of the other sizes."""
    _new: dict[int, list[float]] = field(default_factory=dict)
    """By size: its error in each interval, until there are enough."""
    _values: dict[int, list[float]] = field(default_factory=dict)
    """By size: the logarithms of the interval that goes on."""

    def note(self, num_tokens: int, value: float) -> None:
        """Note the logarithm of measured over predicted seconds of a step."""
        values = self._values.setdefault(num_tokens.bit_length(), [])
        if len(values) < MOST_SAMPLES:
            values.append(value)

    def clear(self) -> None:
        """Leave out the interval that goes on."""
        self._values.clear()

    def conclude(self, level: float | None) -> float | None:
        """End an interval, and return the median of its steps without the errors of their sizes; None: not known.

        Args:
            level: the median of the last intervals; None: there was none.
        """
        values, self._values = self._values, {}
        if values and not self._errors:
            self._errors[max(values, key=lambda size: len(values[size]))] = 0.0
        known = [
            value - self._errors[size] for size, found in values.items() if size in self._errors for value in found
        ]
        middle = median(known) if known else None
        reference = level if middle is None else middle
        for size, found in values.items():
            if size not in self._errors and reference is not None:
                self._learn(size, median(found) - reference)
        return middle

    def _learn(self, size: int, error: float) -> None:
        found = self._new.setdefault(size, [])
        found.append(error)
        if len(found) >= ENOUGH:
            self._errors[size] = min(max(median(found), -MOST_ERROR), MOST_ERROR)
            del self._new[size]
