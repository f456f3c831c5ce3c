"""An engine that schedules itself, made of core's own head and stages of any backend.

It gives exactly the tokens of a pipeline of these stages, so that what lies between it and a client can be tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack, get_args

from parallax_core.contracts.engine import MAX_ANSWERS, EngineStats, Health, Request, Stream
from parallax_core.contracts.engine_spec import RequestField
from parallax_core.contracts.stage import Stage
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.testing.toy import SizeOptions, Toy

UNSUPPORTED = frozenset({"adapter"})
MAX_LOGPROBS = 20
TOY_PAGES = 80


class StageEngine:
    """A `TokenEngine` made of stages in this process."""

    def __init__(self, stages: Sequence[Callable[[], Stage]]) -> None:
        """Open ``stages`` when the engine starts; together they have all layers."""
        self.engine = PipelineEngine(LocalExecutor(stages), _give_no_text)

    @property
    def info(self) -> EngineInfo:
        """The properties of the stages."""
        last, limits = self.engine.infos[-1], self.engine.limits
        assert limits is not None, "the engine has started"
        return EngineInfo(
            num_layers=last.num_layers,
            vocab_size=last.vocab_size,
            context_length=self.engine.max_length,
            max_running=limits.max_running,
            max_batch_tokens=limits.max_batch_tokens,
            seed="exact",
            honours=frozenset(get_args(RequestField)) - UNSUPPORTED,
            max_answers=MAX_ANSWERS,
            max_logprobs=MAX_LOGPROBS,
            device=last.device,
            dtype=last.dtype,
            weight_bytes=sum(info.weight_bytes for info in self.engine.infos),
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
        return self.engine.stats()


def make_toy_engine(toy: Toy, **sizes: Unpack[SizeOptions]) -> StageEngine:
    """Return an engine of a toy: its tokens are those of `Toy.continuation`."""
    sizes.setdefault("num_pages", TOY_PAGES)
    return StageEngine([partial(toy.open, None, **sizes)])


def _give_no_text(tokens: Sequence[int]) -> str:
    del tokens
    return ""
