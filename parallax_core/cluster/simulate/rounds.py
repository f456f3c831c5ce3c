"""Rounds in which all answers decode: each step departs again when it has returned, as long as nothing else happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from parallax_core.cluster.simulate.step_path import Passage, StepPath


class RepeatedStep(NamedTuple):
    """A step on its way, which will repeat."""

    passage: Passage
    num_tokens: int
    growth_s: Sequence[float]
    """By how much longer each stage takes in each round, since the contexts grow; shape [stages]."""


class Rounds:
    """The steps that follow those on their way, in their order: links and stages never change it.

    How long a stage takes grows evenly over the rounds. When a step departs, and where it waits for others, follows for
    each step from those before it, as for steps that are planned one by one.
    """

    def __init__(self, path: StepPath, steps: Sequence[RepeatedStep], number: int) -> None:
        """Let steps depart ``number`` times again, each when it has returned."""
        self._path, self._period = path, len(steps)
        passages = self._passages = [step.passage for step in steps]
        for _ in range(number):
            for step in steps:
                before = passages[-self._period]
                seconds = [each_s + more_s for each_s, more_s in zip(before.seconds, step.growth_s, strict=True)]
                passages.append(path.send(seconds, step.num_tokens, before.returned))

    @property
    def last(self) -> float:
        """The time at which the last step returns that repeats in these rounds."""
        return self._passages[-self._period - 1].returned

    def count(self, now: float) -> int:
        """Return how many steps have returned, beginning with those on their way; the last ones do not count."""
        number, most = 0, len(self._passages) - self._period
        while number < most and self._passages[number].returned <= now:
            number += 1
        return number

    def end(self, number: int) -> Iterator[tuple[Passage, Passage]]:
        """End when ``number`` steps have returned; yield each with the step that departed then."""
        period = self._period
        self._path.rewind(self._passages[number + period - 1])
        for passage, later in zip(self._passages[:number], self._passages[period:], strict=False):
            self._path.charge(later.seconds)
            yield passage, later
