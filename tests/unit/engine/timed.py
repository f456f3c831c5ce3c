"""Runs a head whose stages take times by a formula, on a simulated clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from parallax_core.api import Drawn, LayerRange, PoolInfo, RequestId, StageInfo, StageResult
from parallax_core.contracts.stage import Draw
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.options import HeadOptions
from parallax_core.engine.step_cost import StepSize, measure_rows
from tests.unit.engine.replica import decode, make_request

Law = Callable[[StepSize], float]
"""The seconds of a step on one stage."""


def make_law(fixed: float = 0.01, decode_s: float = 0.001, prompt_s: float = 0.0005, context_s: float = 0.0) -> Law:
    """Return a law: a fixed time, and times per decode, per prompt token and per token attended to."""
    return lambda size: (
        fixed
        + decode_s * size.num_decodes
        + prompt_s * size.num_prompt
        + context_s * (size.decode_context + size.prompt_context)
    )


def make_info(layers: LayerRange, num_layers: int) -> StageInfo:
    return StageInfo(
        layers=layers,
        num_layers=num_layers,
        vocab_size=1_000_000,
        context_length=100_000,
        max_batch_tokens=512,
        pools=(PoolInfo(kind="full", page_size=16, num_pages=50_000),),
        device="simulated",
        dtype="float32",
        weight_bytes=1,
        weights_version="1",
    )


class TimedPipeline:
    """A pipeline whose stages compute one step after another, and whose links take no time."""

    def __init__(self, laws: Sequence[Law], target_itl_s: float | None = None) -> None:
        num = len(laws)
        self.laws, self.now = laws, 0.0
        infos = [make_info(LayerRange(*pair), num) for pair in pairwise(range(num + 1))]
        self.head = Head(infos, decode, HeadOptions(target_itl_s=target_itl_s))
        self.steps: list[tuple[float, StepSize]] = []
        """The departure and the size of each step with rows."""
        self.times: dict[RequestId, list[float]] = {}
        """The times of each request's tokens."""
        self.arrived: dict[RequestId, float] = {}
        self.wanted: dict[RequestId, int] = {}
        """The number of tokens that each request asks for."""
        self._free_at = [0.0] * num
        self._flights: deque[tuple[float, PlannedStep, list[float]]] = deque()

    def ask(self, num_prompt: int, num_output: int) -> RequestId:
        """Submit a request whose prompt no other shares."""
        number = len(self.times) + 1
        request = make_request([number * 1000 + place for place in range(num_prompt)], num_output)
        self.head.accept(request, self.now)
        self.times[request.id], self.arrived[request.id] = [], self.now
        self.wanted[request.id] = num_output
        return request.id

    def run(self, until: float = math.inf) -> None:
        """Compute until nothing is left to do, or ``until``."""
        while self.now < until:
            if not self.advance():
                self.now = until if until < math.inf else self.now
                return

    def advance(self) -> bool:
        """Plan all steps there are now, and absorb the next result; return whether there was one."""
        while (step := self.head.plan(self.now)) is not None:
            self._depart(step)
        if self._flights:
            self._absorb()
            return True
        return False

    def gaps(self, *requests: RequestId) -> list[float]:
        """Return the sorted times between the tokens of the given requests, or of all."""
        return sorted(after - before for each in requests or self.times for before, after in pairwise(self.times[each]))

    def _depart(self, step: PlannedStep) -> None:
        size, at, seconds = measure_rows(step.batch.rows), self.now, []
        for stage, law in enumerate(self.laws):
            seconds.append(law(size) if step.batch.rows else 0.0)
            self._free_at[stage] = at = max(at, self._free_at[stage]) + seconds[-1]
        self._flights.append((at, step, seconds))
        if step.batch.rows:
            self.steps.append((self.now, size))

    def _absorb(self) -> None:
        self.now, step, seconds = self._flights.popleft()
        for stage, each in enumerate(seconds):
            self.head.confirm(stage, step.batch.step, (), each, self.now)
        draws = [output for row in step.batch.rows for output in row.outputs if isinstance(output, Draw)]
        self.head.absorb(StageResult(tuple(Drawn((1,) * draw.count) for draw in draws)), self.now)
        for request, delta in self.head.take_deltas():
            self.times[request].extend([self.now] * len(delta.tokens))
