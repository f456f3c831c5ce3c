"""A toy model as an engine that schedules itself: a whole pipeline in this process, which gives out tokens.

It computes what `Toy.continuation` does, so its tokens can be compared exactly, also behind a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import get_args

from parallax_core.contracts.engine import MAX_ANSWERS, EngineStats, Health, Request, Stream
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.token_engine import EngineInfo, RequestField
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.testing.toy import Toy

UNSUPPORTED = frozenset({"adapter"})
CONTEXT, PAGES, STEP = 64, 80, 8


class ToyEngine:
    """A `TokenEngine` made of core's own head and stages of a toy."""

    def __init__(self, toy: Toy, num_stages: int = 1, context: int = CONTEXT) -> None:
        cuts = [len(toy.layers) * index // num_stages for index in range(num_stages + 1)]
        stages = [
            partial(toy.open, LayerRange(*pair), num_pages=PAGES, context=context, max_batch_tokens=STEP)
            for pair in pairwise(cuts)
        ]
        self.toy, self.context = toy, context
        self.engine = PipelineEngine(LocalExecutor(stages), _no_text)

    @property
    def info(self) -> EngineInfo:
        """The properties of the toy."""
        limits = self.engine.limits
        return EngineInfo(
            num_layers=len(self.toy.layers),
            vocab_size=self.toy.vocab,
            context_length=self.context,
            max_running=limits.max_running if limits else 1,
            max_batch_tokens=STEP,
            seed="exact",
            honours=frozenset(get_args(RequestField)) - UNSUPPORTED,
            max_answers=MAX_ANSWERS,
            max_logprobs=20,
            device="toy",
            dtype="int64",
        )

    async def start(self) -> None:
        """Open the stages."""
        await self.engine.start()

    async def stop(self) -> None:
        """Close the stages."""
        await self.engine.stop()

    def submit(self, request: Request) -> Stream:
        """Submit a request."""
        return self.engine.submit(request)

    def health(self) -> Health:
        """Return the pipeline's health."""
        return self.engine.health()

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the pipeline's statistics."""
        return tuple(replace(stats) for stats in self.engine.stats())


def _no_text(tokens: Sequence[int]) -> str:
    del tokens
    return ""
