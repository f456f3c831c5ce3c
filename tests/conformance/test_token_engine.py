"""The kit runs on an engine that gives tokens: in this process, over a link, and in a worker process."""

from __future__ import annotations

from parallax_core.api import Engine, TokenEngine
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.whole_model.engine import TextEngine
from parallax_core.testing.toy_engine import ToyEngine
from tests.conformance.test_engine import TOY, ToyKit, break_stage, decode
from tests.support.engine_workers import ProcessEngine, link_task


class BrokenEngine(ToyEngine):
    """An engine that cannot start."""

    def __init__(self) -> None:
        super().__init__(TOY)
        self.engine = PipelineEngine(LocalExecutor([break_stage]), decode)


class TokenKit(ToyKit):
    def make_engine(self) -> Engine:
        return TextEngine(self.make_token_engine(), decode)

    def make_token_engine(self) -> TokenEngine:
        return ToyEngine(TOY)

    def make_broken_engine(self) -> Engine:
        return TextEngine(BrokenEngine(), decode)


class TestEngineOfThisProcess(TokenKit):
    pass


class TestEngineOverALink(TokenKit):
    def make_token_engine(self) -> TokenEngine:
        return link_task(lambda: ToyEngine(TOY), TOY)

    def make_broken_engine(self) -> Engine:
        return TextEngine(link_task(BrokenEngine, TOY), decode)


class TestEngineInAProcess(TokenKit):
    def make_token_engine(self) -> TokenEngine:
        return ProcessEngine(TOY)

    def make_broken_engine(self) -> Engine:
        engine = ProcessEngine(TOY)
        engine.supervisor.command = lambda _: ["/bin/false"]
        return TextEngine(engine, decode)
