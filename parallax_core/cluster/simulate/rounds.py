"""Rounds of a stage in which all answers decode: each takes a little longer than the one before."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from parallax_core.cluster.simulate.step_path import Passage
from parallax_core.cluster.simulate.step_time import StepWork

if TYPE_CHECKING:
    from parallax_core.cluster.simulate.pipeline import PipelineModel


class Rounds:
    """The steps of a single stage that follow the one on its way; their seconds are an arithmetic series."""

    def __init__(self, passage: Passage, model: PipelineModel, later: StepWork, number: int) -> None:
        """Describe rounds.

        Args:
            passage: of the step on its way.
            model: the pipeline.
            later: what the step asks for in the last round.
            number: of rounds.
        """
        [stage], [seconds] = model.stages, passage.seconds
        self._seconds, self._number, self._returned = seconds, number, passage.returned
        self._more_s = (stage.measure(later) - seconds) / number
        self._period_s = seconds + sum(model.ways_s) + model.back_s

    def growth(self, number: float) -> float:
        """Return how many times longer than the step on its way one takes after so many rounds."""
        return 1 + self._more_s / self._seconds * number

    def measure(self, number: int) -> float:
        """Return the seconds of the first so many rounds."""
        return number * self._period_s + self._more_s * number * (number + 1) / 2

    def count(self, now: float) -> int:
        """Return the number of steps that have returned, of which the one on its way is the first."""
        passed_s = now - self._returned
        if passed_s < 0:
            return 0
        mean_s = self._period_s + self._more_s / 2
        root = sqrt(mean_s * mean_s + 2 * self._more_s * passed_s) if self._more_s > 0 else 0.0
        number = 1 + int((root - mean_s) / self._more_s if self._more_s > 0 else passed_s / self._period_s)
        while number > 1 and self.measure(number - 1) > passed_s:
            number -= 1
        while number < self._number and self.measure(number) <= passed_s:
            number += 1
        return min(number, self._number)

    def shift(self, passage: Passage, number: int) -> float:
        """Move the step by so many rounds, and return the seconds that the stage computes in them."""
        by_s = self.measure(number)
        passage.departed += by_s
        passage.returned += by_s
        passage.reported = [at + by_s for at in passage.reported]
        passage.seconds = [self._seconds + self._more_s * number]
        return self._seconds * number + self._more_s * number * (number + 1) / 2
