from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest

from parallax_core.api import BackendFailed, Engine, LayerRange, Stage
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from parallax_core.testing.engine import EngineConformance
from parallax_core.testing.toy import Toy
from parallax_policies.routing import RoundRobin

TOY = Toy(("full", "window", "full"))


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def break_stage() -> Stage:
    raise BackendFailed("the stage cannot be opened", "try another")


class ToyKit(EngineConformance):
    prompts = ((3, 1, 4), (1, 5, 9, 2, 6, 5), (3, 5), (8,) * 20)
    context = 64
    num_stages = 1

    def make_engine(self) -> Engine:
        cuts = [len(TOY.layers) * index // self.num_stages for index in range(self.num_stages + 1)]
        stages = [partial(TOY.open, LayerRange(*pair), num_pages=80) for pair in pairwise(cuts)]
        return PipelineEngine(LocalExecutor(stages), decode)

    def make_broken_engine(self) -> Engine:
        return PipelineEngine(LocalExecutor([partial(TOY.open), break_stage]), decode)

    def decode(self, tokens: Sequence[int]) -> str:
        return decode(tokens)


class FewEnds(ToyKit):
    """Leaves panics and exits of tasks to the nightly run; `TestPipelineOfOne` tries them every time."""

    @pytest.mark.nightly
    def test_panic_that_ends_a_task_is_noticed(self) -> None:
        super().test_panic_that_ends_a_task_is_noticed()

    @pytest.mark.nightly
    def test_exit_that_ends_a_task_is_noticed(self) -> None:
        super().test_exit_that_ends_a_task_is_noticed()


class TestPipelineOfOne(ToyKit):
    num_stages = 1


class TestPipelineOfThree(FewEnds):
    num_stages = 3


class TestRouter(FewEnds):
    def make_engine(self) -> Engine:
        engines = [super().make_engine(), super().make_engine()]
        return Router(engines, RoundRobin(), lambda: self.context)

    def make_broken_engine(self) -> Engine:
        engines = [super().make_engine(), super().make_broken_engine()]
        return Router(engines, RoundRobin(), lambda: self.context)
