"""Chooses the rows of coarse steps like the head: decodes, paced prompts, admissions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from parallax_core.api import StageInfo
from parallax_core.api.simulation import Limits, Pacer, PromptBudget, StageClock, StepSize, StreamLoad, find_limits
from parallax_stage_tools.pools import PAGE_SIZE


@dataclass(eq=False, slots=True)
class CoarseAnswer:
    """A request and its progress."""

    number: int
    missing: int
    """Known tokens that no step on its way computes."""
    left: int
    """Tokens of the answer that are yet to come."""
    length: int = 0
    """Tokens that steps have computed or are computing."""
    has_begun: bool = False
    """Whether it has a token, be it of the pipeline that it had before."""
    is_running: bool = False
    is_drawing: bool = False


@dataclass(eq=False, slots=True)
class CoarseRow:
    """A part of a step."""

    answer: CoarseAnswer
    start: int
    count: int
    draws: bool


class CoarsePlanner:
    """The requests of a pipeline, and the rows of its next step."""

    def __init__(self, infos: Sequence[StageInfo], limits: Limits) -> None:
        pools = [pool for info in infos for pool in info.pools if pool.kind in {"full", "latent"}]
        self._free = min((pool.num_pages * pool.page_size // PAGE_SIZE for pool in pools), default=2**40)
        """Pages of the smallest pool that no answer holds."""
        self._limits = find_limits(limits, infos)
        self._num_stages = len(infos)
        self._running: list[CoarseAnswer] = []
        self._waiting: deque[CoarseAnswer] = deque()
        self.max_length = min(self._free * PAGE_SIZE, *(info.context_length for info in infos))
        self.clock = StageClock(self._num_stages)
        self._pacer = Pacer(self.clock)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a place."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """The number of answers that have a place."""
        return len(self._running)

    @property
    def has_room(self) -> bool:
        """Whether a further request may wait."""
        places = max(0, self._limits.max_running - len(self._running))
        return len(self._waiting) < places + self._limits.max_waiting

    def add(self, answer: CoarseAnswer) -> None:
        """Queue a request."""
        self._waiting.append(answer)

    def count_rounds(self, steps: Sequence[Sequence[CoarseRow]]) -> int:
        """Return for how many rounds the steps on their way, with these rows, repeat: all decode, and none ends."""
        running = self._running
        share = -(-len(running) // self._num_stages)
        if self._waiting or not running or len(steps) > self._num_stages:
            return 0
        if any(len(rows) > share or any(row.count > 1 for row in rows) for rows in steps):
            return 0
        fewest = inf
        for answer in running:
            if not answer.is_drawing or not answer.has_begun:
                return 0
            fewest = min(fewest, answer.left)
        room = PAGE_SIZE * (self._free // len(running) - 1)
        return int(min(fewest - 1, room))

    def draw(self, answer: CoarseAnswer) -> bool:
        """Note a token of an answer; return whether it is the last."""
        answer.has_begun, answer.is_drawing = True, False
        answer.left -= 1
        answer.missing = 1
        if not answer.left:
            self._running.remove(answer)
            self._free += _count_pages(answer.length)
        return not answer.left

    def draw_next(self, answer: CoarseAnswer) -> None:
        """Note a token of an answer that is not its last; the next one is on its way."""
        answer.left -= 1
        self._hold(answer, 1)

    def choose(self, now: float) -> list[CoarseRow]:
        """Return the rows of the next step."""
        share = -(-max(len(self._running), 1) // self._num_stages)
        rows, prefills = list[CoarseRow](), list[CoarseAnswer]()
        budget, size = self._limits.max_batch_tokens, StepSize()
        for answer in list(self._running):
            if answer.is_drawing or not answer.is_running:
                continue
            if answer.missing > 1:
                prefills.append(answer)
            elif len(rows) < share and budget and self._make_room(answer):
                size = size.add(answer.length, 1)
                rows.append(self._take(answer, 1))
                budget -= 1
        if prefills or self._waiting:
            self._choose_prompts(rows, prefills, (budget, size), now)
        else:
            self.note_calm(now)
        return rows

    def note_calm(self, now: float) -> None:
        """Note that no prompt was there in the steps up to now."""
        self._pacer.note(PromptBudget(self.clock.costs), 0, is_short=False, now=now)

    def _choose_prompts(
        self, rows: list[CoarseRow], prefills: list[CoarseAnswer], left: tuple[int, StepSize], now: float
    ) -> None:
        """Add rows of prompts within the budget left by the decodes, begun prompts first."""
        limits, (budget, size), num_taken, is_short = self._limits, left, 0, False
        prompts = self._pacer.make_budget(size, self._measure_load())
        for answer in (each for each in prefills if each.is_running):
            count = self._take_prompt(rows, answer, prompts, budget) if budget else 0
            budget, num_taken, is_short = budget - count, num_taken + count, is_short or count < answer.missing + count
        while budget and self._waiting and len(self._running) < limits.max_running and not prompts.is_spent:
            answer = self._waiting[0]
            if _count_pages(answer.missing) > self._free:
                break
            self._running.append(self._waiting.popleft())
            answer.is_running = True
            count = self._take_prompt(rows, answer, prompts, budget)
            budget, num_taken, is_short = budget - count, num_taken + count, is_short or answer.missing > 0
        is_short = is_short or (bool(self._waiting) and len(self._running) < limits.max_running)
        self._pacer.note(prompts, num_taken, is_short=is_short, now=now)

    def _take_prompt(self, rows: list[CoarseRow], answer: CoarseAnswer, prompts: PromptBudget, budget: int) -> int:
        count = prompts.limit(answer.length, min(answer.missing, budget))
        if len(self._running) + len(self._waiting) == 1:
            count = min(count, self.clock.cut_prompt(answer.length + answer.missing, budget))
        count = min(count, self._free * PAGE_SIZE)
        if count:
            prompts.take(answer.length, count)
            rows.append(self._take(answer, count))
        return count

    def _measure_load(self) -> StreamLoad:
        num_begun, is_in_flight = 0, False
        for answer in self._running:
            if answer.has_begun:
                num_begun += 1
                is_in_flight = is_in_flight or answer.is_drawing
        num_present = min(len(self._running) + len(self._waiting), self._limits.max_running)
        return StreamLoad(num_begun, is_in_flight, num_present)

    def _take(self, answer: CoarseAnswer, count: int) -> CoarseRow:
        start = answer.length
        self._hold(answer, count)
        answer.missing -= count
        answer.is_drawing = not answer.missing
        return CoarseRow(answer, start, count, answer.is_drawing)

    def _hold(self, answer: CoarseAnswer, count: int) -> None:
        self._free -= _count_pages(answer.length + count) - _count_pages(answer.length)
        answer.length += count

    def _make_room(self, answer: CoarseAnswer) -> bool:
        """Return whether there is a page for a token of an answer, of which newer ones are preempted."""
        while not self._free and answer.length % PAGE_SIZE == 0:
            victim = next((each for each in reversed(self._running) if not each.is_drawing), answer)
            if victim is answer:
                return False
            self._preempt(victim)
        return True

    def break_deadlock(self) -> bool:
        """Preempt the newest of several answers, none of which has a page for its next token; return whether it was."""
        if len(self._running) > 1:
            self._preempt(self._running[-1])
            return True
        return False

    def _preempt(self, victim: CoarseAnswer) -> None:
        self._running.remove(victim)
        victim.is_running = False
        self._free += _count_pages(victim.length)
        victim.missing, victim.length = victim.missing + victim.length, 0
        self._waiting.appendleft(victim)


def _count_pages(length: int) -> int:
    return -(-length // PAGE_SIZE)
