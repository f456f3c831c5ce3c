"""The kit runs on an engine that gives tokens: in this process, over a link, and in a worker process."""

from __future__ import annotations

from parallax_core.api import Engine, TokenEngine
from parallax_core.testing.stage_engine import StageEngine, make_toy_engine
from parallax_core.testing.token_engine import TextEngine
from tests.conformance.test_engine import TOY, FewEnds, ToyKit, break_stage, decode
from tests.support.engine_workers import ProcessEngine, link_task


def make_broken() -> StageEngine:
    """Return an engine that cannot start."""
    return StageEngine([break_stage])


class TokenKit(ToyKit):
    def make_engine(self) -> Engine:
        return TextEngine(self.make_token_engine(), decode)

    def make_token_engine(self) -> TokenEngine:
        return make_toy_engine(TOY)

    def make_broken_engine(self) -> Engine:
        return TextEngine(make_broken(), decode)


class TestEngineOfThisProcess(TokenKit):
    pass


class TestEngineOverALink(TokenKit, FewEnds):
    def make_token_engine(self) -> TokenEngine:
        return link_task(lambda: make_toy_engine(TOY), TOY)

    def make_broken_engine(self) -> Engine:
        return TextEngine(link_task(make_broken, TOY), decode)


class TestEngineInAProcess(TokenKit, FewEnds):
    context = 256

    def make_token_engine(self) -> TokenEngine:
        return ProcessEngine(TOY)

    def make_broken_engine(self) -> Engine:
        engine = ProcessEngine(TOY)
        engine.supervisor.command = lambda _: ["/bin/false"]
        return TextEngine(engine, decode)
