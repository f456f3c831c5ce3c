"""Runs a pipeline whose stages are toys in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, pairwise

from parallax_core.api import (
    Delta,
    LayerRange,
    Request,
    RequestId,
    Sampling,
    Stage,
    Stream,
)
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.toy import GREEDY, Toy, ToyStage

NUMBERS = count()


TOY = Toy(("full", "window", "full", "full", "window"))


PATIENCE_S = 20.0


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_request(prompt: Sequence[int], max_tokens: int = 4, sampling: Sampling = GREEDY) -> Request:
    return Request(id=RequestId(str(next(NUMBERS))), prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling)


def make_stages(num_stages: int, num_pages: int = 40) -> list[ToyStage]:
    """Return stages of the toy, of about as many layers each."""
    cuts = [len(TOY.layers) * index // num_stages for index in range(num_stages + 1)]
    return [TOY.open(LayerRange(start, stop), num_pages=num_pages) for start, stop in pairwise(cuts)]


def openers(stages: Sequence[Stage]) -> list[Callable[[], Stage]]:
    return [partial(_same, stage) for stage in stages]


def _same(stage: Stage) -> Stage:
    return stage


async def collect(stream: Stream) -> list[Delta]:
    async with asyncio.timeout(PATIENCE_S):
        return [delta async for delta in stream]


@asynccontextmanager
async def running(stages: Sequence[Stage], plan: PipelineOptions | None = None) -> AsyncIterator[PipelineEngine]:
    async with started(PipelineEngine(LocalExecutor(openers(stages), plan), decode, plan)) as engine:
        yield engine


@asynccontextmanager
async def started(engine: PipelineEngine) -> AsyncIterator[PipelineEngine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def tokens_of(deltas: Sequence[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def end_of(deltas: Sequence[Delta]) -> tuple[str, str]:
    """Return how a stream ended; it has exactly one terminal delta, the last one."""
    finishes = [delta.finish for delta in deltas]
    assert finishes[-1] is not None
    assert finishes.count(None) == len(finishes) - 1
    return finishes[-1].reason, finishes[-1].message
