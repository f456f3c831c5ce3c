from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from parallax_core.api import Grammar, InvalidRequest
from parallax_core.node.pipeline import compiled_grammars
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.toy import GREEDY
from tests.support.grammars import SumCompiler, SumGrammar, expect_answer, make_grammar
from tests.unit.node.pipeline.grammars import HOT, ask, plan
from tests.unit.node.pipeline.local import TOY, collect, end_of, make_stages, running, tokens_of


class Panic(BaseException):
    """What a library written in Rust raises when it panics."""


async def test_others_go_on_while_a_grammar_is_compiled() -> None:
    compiler = SumCompiler()
    compiler.may_go_on.clear()
    async with running(make_stages(1), plan(compiler)) as engine:
        waiting = engine.submit(ask([1, 2, 3]))
        other = await collect(engine.submit(replace(ask([4, 5], sampling=GREEDY, max_tokens=6), grammar=None)))
        assert tokens_of(other) == TOY.continuation([4, 5], 6)
        compiler.may_go_on.set()
        assert tokens_of(await collect(waiting)) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


async def test_grammar_is_compiled_once_for_many_requests() -> None:
    compiler = SumCompiler()
    async with running(make_stages(1), plan(compiler)) as engine:
        for _ in range(3):
            await collect(engine.submit(ask([1, 2, 3])))
    assert compiler.num_compiled == 1


async def test_grammar_that_cannot_be_compiled_ends_its_request_alone() -> None:
    async with running(make_stages(1), plan()) as engine:
        wrong, right = engine.submit(ask([1], Grammar(kind="lark", source="?"))), engine.submit(ask([1, 2, 3]))
        assert end_of(await collect(wrong)) == ("error", "the grammar is not two numbers")
        assert tokens_of(await collect(right)) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


async def test_request_that_expires_while_its_grammar_is_compiled_ends() -> None:
    compiler = SumCompiler()
    compiler.may_go_on.clear()
    async with running(make_stages(1), plan(compiler)) as engine:
        answer = await collect(engine.submit(ask([1, 2, 3], timeout_s=0.05)))
        compiler.may_go_on.set()
    assert end_of(answer)[0] == "timeout"


async def test_request_with_a_grammar_is_refused_where_it_cannot_be_followed() -> None:
    async with running(make_stages(1), PipelineOptions()) as engine:
        with pytest.raises(InvalidRequest, match="without a compiler of grammars") as refused:
            engine.submit(ask([1]))
        assert refused.value.param == "grammar"
    async with running(make_stages(1), plan()) as engine:
        with pytest.raises(InvalidRequest, match="needs a token that ends the answer"):
            engine.submit(ask([1], stop_ids=frozenset()))


class FaultyCompiler(SumCompiler):
    """Panics over one grammar, and hangs over another one."""

    def compile(self, grammar: Grammar) -> SumGrammar:
        if grammar.source == "panic":
            raise Panic("index out of bounds")
        if grammar.source == "hang":
            self.may_end.wait(20)
        return super().compile(grammar)

    may_end = threading.Event()


async def test_panic_of_the_compiler_ends_its_request_alone() -> None:
    async with running(make_stages(1), plan(FaultyCompiler())) as engine:
        wrong = engine.submit(ask([1], Grammar(kind="lark", source="panic")))
        right = engine.submit(ask([1, 2, 3]))
        assert end_of(await collect(wrong)) == ("error", "its grammar cannot be compiled: Panic: index out of bounds")
        assert tokens_of(await collect(right)) == expect_answer(TOY, [1, 2, 3], make_grammar(), HOT)


async def test_grammar_that_is_compiled_for_ever_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_grammars, "LIMIT_S", 0.05)
    async with running(make_stages(1), plan(FaultyCompiler())) as engine:
        wrong = engine.submit(ask([1], Grammar(kind="lark", source="hang")))
        right = [engine.submit(ask([1, 2, number])) for number in range(3)]
        assert end_of(await collect(wrong)) == ("error", "compiling the grammar takes more than 0.05 s")
        for number, stream in enumerate(right):
            assert tokens_of(await collect(stream)) == expect_answer(TOY, [1, 2, number], make_grammar(), HOT)
    FaultyCompiler.may_end.set()


async def test_grammar_of_many_requests_that_come_at_once_is_compiled_once() -> None:
    compiler = SumCompiler()
    async with running(make_stages(1), plan(compiler)) as engine:
        await asyncio.gather(*(collect(engine.submit(ask([1, 2, number]))) for number in range(8)))
    assert compiler.num_compiled == 1
