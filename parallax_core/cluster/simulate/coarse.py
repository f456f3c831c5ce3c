"""Simulates one pipeline with decodes taken together: the steps in which nothing else happens are one event."""

from __future__ import annotations

from collections import deque
from math import inf

from parallax_core.base.errors import InvalidRequest, Overloaded
from parallax_core.cluster.simulate.coarse_plan import CoarseAnswer, CoarsePlanner, CoarseRow
from parallax_core.cluster.simulate.pipeline import DrawnTokens, PipelineModel, SimulatedRequest
from parallax_core.cluster.simulate.rounds import Rounds
from parallax_core.cluster.simulate.step_path import Passage, StepPath
from parallax_core.cluster.simulate.step_time import StepWork, count_attended
from parallax_core.engine.limits import Limits
from parallax_core.engine.stage_clock import StepTimes
from parallax_core.engine.step_cost import StepSize

MOST_ROUNDS = 8
"""The most steps of an answer that are one event: the router learns of its tokens when it ends."""


class CoarseStep:
    """A step on its way."""

    __slots__ = ("passage", "rows", "size", "times")

    def __init__(self, rows: list[CoarseRow], passage: Passage, size: StepSize, times: StepTimes) -> None:
        self.rows, self.passage, self.size, self.times = rows, passage, size, times


class CoarsePipeline:
    """A pipeline whose steps are chosen as the head's scheduler does, by the same pacing, without its other work.

    There are no prefixes, priorities, policies or pools of windows. While all answers of a single stage decode and none
    ends, its steps repeat: these rounds are one event, which an arrival ends early. Their times grow evenly with the
    contexts. Steps of several stages are single events: a prompt leaves gaps between them, which last.
    """

    def __init__(self, model: PipelineModel, context_length: int, limits: Limits | None = None) -> None:
        self._model = model
        self._planner = CoarsePlanner(model.make_infos(context_length), limits or Limits())
        self._path = StepPath(model)
        self._steps: deque[CoarseStep] = deque()
        self._rounds: Rounds | None = None
        self._told: list[DrawnTokens] = []
        self.busy_s = self._path.busy_s
        self.next_at = inf

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
        known = arrival.prompt_tokens + request.num_delivered
        self._planner.add(CoarseAnswer(request.number, known, arrival.output_tokens - request.num_delivered))
        self.next_at = now

    def advance(self, now: float) -> list[DrawnTokens]:
        """Absorb the results that are there, and plan steps."""
        told = self.settle(now)
        self._rounds = None
        self._plan(now)
        self._begin_rounds()
        return told

    def settle(self, now: float) -> list[DrawnTokens]:
        """Absorb the results that are there, and return their tokens; the rest of ended rounds begins anew."""
        self._end_rounds(now)
        while self._steps and self._steps[0].passage.returned <= now:
            at = self._steps[0].passage.returned
            self._absorb(self._steps.popleft(), at)
            if at < now:
                self._plan(at)
        told, self._told = self._told, []
        return told

    def _plan(self, now: float) -> None:
        planner = self._planner
        while len(self._steps) < planner.clock.most_in_flight:
            rows = planner.choose(now)
            if not rows:
                if self._steps or not planner.break_deadlock():
                    break
                continue
            work, size = weigh(rows, self._model.windows)
            times = StepTimes(len(self._model.stages), now, not self._steps, size)
            self._steps.append(CoarseStep(rows, self._path.depart(work, now), size, times))

    def _absorb(self, step: CoarseStep, now: float) -> None:
        clock, num_tokens = self._planner.clock, sum(row.count for row in step.rows)
        for stage, (seconds, reported) in enumerate(zip(step.passage.seconds, step.passage.reported, strict=True)):
            step.times.note(stage, seconds)
            clock.note(step.times, stage, num_tokens, reported)
        clock.arrive(step.times, now)
        for row in step.rows:
            if row.draws:
                is_over = self._planner.draw(row.answer)
                self._told.append(DrawnTokens(row.answer.number, 1, now, is_over))

    def _begin_rounds(self) -> None:
        """Let the steps on their way repeat, as long as no answer ends, and find when they have."""
        self.next_at = self._steps[0].passage.returned if self._steps else inf
        if len(self._model.stages) > 1 or len(self._steps) != 1:
            return
        number = min(self._planner.count_rounds(), MOST_ROUNDS)
        if number > 0:
            [step] = self._steps
            later, _ = weigh(step.rows, self._model.windows, number)
            self._rounds = rounds = Rounds(step.passage, self._model, later, number)
            self.next_at += rounds.measure(number)

    def _end_rounds(self, now: float) -> None:
        """Credit the rounds that are over."""
        rounds = self._rounds
        if rounds is None or not (number := rounds.count(now)):
            return
        self._rounds = None
        [step], planner = self._steps, self._planner
        at = step.passage.returned + rounds.measure(number - 1)
        for row in step.rows:
            planner.draw_many(row.answer, number)
            row.start += number
            self._told.append(DrawnTokens(row.answer.number, number, at, is_over=False))
        decodes, context, *_ = step.size
        [seconds] = step.passage.seconds
        for turn in range(number):
            planner.clock.costs.note(StepSize(decodes, context + decodes * turn), seconds * rounds.growth(turn))
        step.size = step.times.size = StepSize(decodes, context + decodes * number)
        step.times.departed += rounds.measure(number)
        self._path.shift(rounds.measure(number))
        self.busy_s[0] += rounds.shift(step.passage, number)
        planner.note_calm(at)
        self.next_at = step.passage.returned


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
