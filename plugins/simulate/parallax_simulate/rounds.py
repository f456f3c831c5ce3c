"""Rounds of decodes: each step departs again when it has returned, until something else happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from parallax_simulate.step_path import Passage, StepPath


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
        """Repeat the steps ``number`` times, each when it has returned."""
        self._path, self._period, self._num_returned = path, len(steps), 0
        passages = self._passages = [step.passage for step in steps]
        for _ in range(number):
            for step in steps:
                before = passages[-self._period]
                seconds = [each_s + more_s for each_s, more_s in zip(before.seconds, step.growth_s, strict=True)]
                passages.append(path.send(seconds, step.num_tokens, before.returned))

    @property
    def next_at(self) -> float:
        """The time at which the next step returns that repeats in these rounds; infinity: none is left."""
        number = self._num_returned
        return self._passages[number].returned if number < len(self._passages) - self._period else inf

    @property
    def last_at(self) -> float:
        """The time at which the last of them returns."""
        return self._passages[-self._period - 1].returned

    def take(self, now: float) -> Iterator[Passage]:
        """Yield, for each step that has returned, the one that departed then."""
        while self.next_at <= now:
            later = self._passages[self._num_returned + self._period]
            self._num_returned += 1
            self._path.charge(later.seconds)
            yield later

    def end(self) -> None:
        """Stop further steps from departing."""
        self._path.rewind(self._passages[self._num_returned + self._period - 1])
