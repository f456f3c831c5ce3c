"""Simulates one pipeline coarsely: consecutive steps of decodes alone are one event."""

from __future__ import annotations

from collections import deque
from math import inf

from parallax_cluster.step_time import StepWork, count_attended
from parallax_core.api import InvalidRequest
from parallax_core.api.simulation import FinishedStep, Limits, Overloaded, StepSize
from parallax_simulate.coarse_plan import CoarseAnswer, CoarsePlanner, CoarseRow
from parallax_simulate.pipeline import DrawnTokens, PipelineModel, SimulatedRequest
from parallax_simulate.rounds import RepeatedStep, Rounds
from parallax_simulate.step_path import Passage, StepPath

MOST_ROUNDS = 16
"""The most steps of an answer that are one event."""


class CoarseStep:
    """A step on its way."""

    __slots__ = ("num_before", "passage", "rows", "size")

    def __init__(self, rows: list[CoarseRow], passage: Passage, size: StepSize, num_before: int) -> None:
        self.rows, self.passage, self.size, self.num_before = rows, passage, size, num_before

    def finish(self) -> FinishedStep:
        """Return what the clock learns from it."""
        passage = self.passage
        return FinishedStep(self.size, passage.seconds, passage.departed, passage.returned, self.num_before)


class CoarsePipeline:
    """A pipeline whose steps are chosen as the head's scheduler does, by the same pacing, without its other work.

    There are no prefixes, priorities, policies or pools of windows. While all answers decode and none ends, the steps
    on their way repeat: these rounds are one event, which an arrival ends early.
    """

    def __init__(self, model: PipelineModel, context_length: int, limits: Limits | None = None) -> None:
        self._model = model
        self._planner = CoarsePlanner(model.make_infos(context_length), limits or Limits())
        self._path = StepPath(model)
        self._steps: deque[CoarseStep] = deque()
        self._rounds: Rounds | None = None
        self._finished: list[FinishedStep] = []
        """Those of the rounds."""
        self._told: list[DrawnTokens] = []
        self.busy_s = self._path.busy_s
        self.next_at = self.settle_at = inf

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        return self._planner.max_length

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Accept a request, which the next `advance` plans."""
        arrival = request.arrival
        if arrival.prompt_tokens + arrival.output_tokens > self.max_length:
            message = f"{arrival.prompt_tokens} prompt tokens and {arrival.output_tokens} new ones are too many"
            raise InvalidRequest(message, "max_tokens", f"ask for at most {self.max_length} in all")
        if not self._planner.has_room:
            raise Overloaded(f"{self._planner.num_waiting} requests are waiting already", "try again later")
        delivered = request.num_delivered
        known, left = arrival.prompt_tokens + delivered, arrival.output_tokens - delivered
        self._planner.add(CoarseAnswer(request.number, known, left, has_begun=delivered > 0))
        self.next_at = now

    def advance(self, now: float) -> list[DrawnTokens]:
        """Absorb the results that are there, and plan steps."""
        told = self.settle(now)
        self._end_rounds()
        self._plan(now)
        self._begin_rounds()
        return told

    def settle(self, now: float) -> list[DrawnTokens]:
        """Absorb the results that are there, and return their tokens."""
        self._pass_rounds(now)
        while self._rounds is None and self._steps and self._steps[0].passage.returned <= now:
            at = self._steps[0].passage.returned
            self._absorb(self._steps.popleft(), at)
            if at < now:
                self._plan(at)
        told, self._told = self._told, []
        return told

    def _plan(self, now: float) -> None:
        planner = self._planner
        while planner.clock.may_depart([step.size for step in self._steps], planner.num_running):
            rows = planner.choose(now)
            if not rows:
                if self._steps or not planner.break_deadlock():
                    break
                continue
            work, size = weigh(rows, self._model.windows)
            self._steps.append(CoarseStep(rows, self._path.depart(work, now), size, len(self._steps)))

    def _absorb(self, step: CoarseStep, now: float) -> None:
        self._planner.clock.note_finished([step.finish()])
        for row in step.rows:
            if row.draws:
                is_over = self._planner.draw(row.answer)
                self._told.append(DrawnTokens(row.answer.number, 1, now, is_over))

    def _begin_rounds(self) -> None:
        """Let the steps on their way repeat, as long as no answer ends, and find when they have."""
        steps = self._steps
        self.next_at = steps[0].passage.returned if steps else inf
        number = min(self._planner.count_rounds([step.rows for step in steps]), MOST_ROUNDS)
        for step in steps if number > 0 else ():
            number = min(number, count_even(step.rows, self._model.windows, number))
        if number > 0:
            self._rounds = Rounds(self._path, [self._repeat(step, number) for step in steps], number)
            self.next_at, self.settle_at = self._rounds.last_at, self._rounds.next_at

    def _repeat(self, step: CoarseStep, number: int) -> RepeatedStep:
        """Return a step that will repeat ``number`` times."""
        later, _ = weigh(step.rows, self._model.windows, number)
        timed = zip(self._model.stages, step.passage.seconds, strict=True)
        growth_s = [(stage.measure(later) - seconds) / number for stage, seconds in timed]
        return RepeatedStep(step.passage, len(step.rows), growth_s)

    def _pass_rounds(self, now: float) -> None:
        """Credit the steps of the rounds that have returned; the clock learns of them when the rounds end."""
        if (rounds := self._rounds) is None:
            return
        steps = self._steps
        for later in rounds.take(now):
            step = steps.popleft()
            self._finished.append(step.finish())
            for row in step.rows:
                self._planner.draw_next(row.answer)
                row.start += 1
                self._told.append(DrawnTokens(row.answer.number, 1, step.passage.returned, is_over=False))
            decodes, context, *_ = step.size
            steps.append(CoarseStep(step.rows, later, StepSize(decodes, context + decodes), len(steps)))
        self.settle_at = rounds.next_at
        if rounds.next_at == inf:
            self._end_rounds()

    def _end_rounds(self) -> None:
        """Plan steps one by one again."""
        if self._rounds is None:
            return
        self._rounds.end()
        self._rounds, self.settle_at = None, inf
        if self._finished:
            self._planner.clock.note_finished(self._finished)
            self._planner.note_calm(self._finished[-1].returned)
            self._finished = []
        self.next_at = self._steps[0].passage.returned


def count_even(rows: list[CoarseRow], windows: tuple[int, ...], most: int) -> int:
    """Return for how many tokens, at most ``most``, what decodes ask for grows evenly: until one fills a window."""
    missing = (window - row.start - row.count for window in windows if window for row in rows)
    return min((number for number in missing if 0 < number < most), default=most)


def weigh(rows: list[CoarseRow], windows: tuple[int, ...], further: int = 0) -> tuple[StepWork, StepSize]:
    """Return what rows ask for, ``further`` tokens later in their sequences."""
    num_tokens, num_draws, size = 0, 0, StepSize()
    attended, kept = [0.0] * len(windows), [0.0] * len(windows)
    for row in rows:
        start, count = row.start + further, row.count
        num_tokens += count
        num_draws += row.draws
        size = size.add(start, count)
        for index, window in enumerate(windows):
            attended[index] += count_attended(start, count, window)
            kept[index] += min(start + count, window) if window else start + count
    return StepWork(num_tokens, len(rows), num_draws, tuple(attended), tuple(kept)), size
