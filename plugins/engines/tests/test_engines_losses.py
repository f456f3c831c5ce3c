"""An engine that is lost, in any way, is started again, and its requests end with the reason."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import (
    BackendFailed,
    Delta,
    Finish,
    Health,
    Request,
    TokenEngine,
    TokenLogprob,
    Unavailable,
)
from parallax_core.node.routing.router import Router
from parallax_core.testing.stage_engine import StageEngine, make_toy_engine
from parallax_core.testing.token_engine import TextEngine
from parallax_engines import node_service
from parallax_policies.routing import RoundRobin
from plugins.engines.tests.linked import (
    TOY,
    ask,
    check_answer,
    collect,
    decode,
    get_finish,
    read,
    running,
)
from tests.support.engine_workers import ProcessEngine, link_task
from tests.unit.node.cluster import soon, until


class Failing(StageEngine):
    """An engine that fails as its `fault` says, after its first token; `healths` tells what it then says of itself."""

    def __init__(self, fault: str) -> None:
        made = make_toy_engine(TOY)
        self.engine = made.engine
        self.fault = fault
        self.has_failed = False

    def health(self) -> Health:
        return Health(state="failed", reason="its core has died") if self.has_failed else super().health()

    def submit(self, request: Request) -> Any:
        if self.fault == "refuse":
            raise BackendFailed("no such kernel")
        return self._fail(super().submit(request))

    def _fail(self, stream: Any) -> Any:
        engine = self

        class Relay:
            async def __aiter__(self) -> AsyncIterator[Delta]:
                async for delta in stream:
                    if engine.fault == "end":
                        return
                    yield delta
                    if engine.fault == "raise":
                        raise ValueError("NaN")
                    if engine.fault == "panic":
                        raise Panic("NaN")
                    if engine.fault == "die":
                        engine.has_failed = True
                        yield Delta(finish=Finish(reason="error", prompt_tokens=3, output_tokens=1, message="dead"))
                        return

            def close(self) -> None:
                stream.close()

        return Relay()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuse", "no such kernel"),
        ("raise", "ValueError: NaN"),
        ("end", "the engine ended its answer without a reason"),
    ],
)
async def test_fault_of_one_answer_ends_that_request_with_the_reason(fault: str, reason: str) -> None:
    async with running(link_task(lambda: Failing(fault), TOY)) as engine:
        finish = get_finish(await read(engine, ask()))
        assert (finish.reason, finish.prompt_tokens) == ("error", 3)
        assert reason in finish.message
        assert engine.health().state == "ready"


async def test_engine_that_reports_its_failure_is_started_again() -> None:
    engines: list[TokenEngine] = [Failing("die"), make_toy_engine(TOY)]
    linked = link_task(lambda: engines.pop(0), TOY)
    async with running(linked) as engine:
        finish = get_finish(await read(engine, ask()))
        assert finish.reason == "error"
        assert "the engine was lost, and is started again: the engine has failed: its core has died" in finish.message
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        [status] = engine.describe()
        assert (status.num_losses, status.stages[0].restarts, len(linked.losses)) == (1, 1, 1)


async def test_link_that_ends_is_the_crash_of_the_engine() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    async with running(linked) as engine:
        await check_answer(engine)
        before = engine.stats()[0].output_tokens
        stream = engine.submit(ask(length=50))
        await linked.node.kill()
        assert get_finish(await soon(collect(stream))).reason == "error"
        with pytest.raises(Unavailable, match="the engine is starting"):
            engine.submit(ask())
        with pytest.raises(Unavailable):
            engine.check_room()
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        await until(lambda: engine.stats()[0].output_tokens >= before + 12)


async def test_request_without_an_answer_waits_for_the_new_process() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    engine = TextEngine(linked, decode)
    router = Router([engine], RoundRobin(), lambda: engine.max_length)
    await soon(router.start())
    try:
        request = ask()
        stream = router.submit(request)
        await linked.node.kill()
        deltas = await soon(collect(stream))
        assert [token for delta in deltas for token in delta.tokens] == TOY.continuation(request.prompt, 12)
    finally:
        await soon(router.stop())


async def test_engine_that_cannot_be_opened_again_is_tried_again_and_says_why() -> None:
    engines: list[Callable[[], TokenEngine]] = [
        lambda: make_toy_engine(TOY),
        _make_broken,
        _make_broken,
        lambda: make_toy_engine(TOY),
    ]

    def make() -> TokenEngine:
        return engines.pop(0)()

    linked = link_task(make, TOY)
    async with running(linked) as engine:
        await linked.node.kill()
        await until(lambda: "trying again" in engine.health().reason)
        assert "the engine on node 'worker/0/0': no kernel" in engine.health().reason
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)


def _make_broken() -> TokenEngine:
    raise BackendFailed("no kernel", "build it")


async def test_any_error_as_an_engine_is_started_again_is_followed_by_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second opening cannot even fork, a search for the cause fails, and so does the first attempt to end it."""
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    async with running(linked) as engine:
        for name in ("explain", "abandon", "open"):
            break_once(monkeypatch, linked.host, name)
        await linked.node.kill()
        await until(lambda: engine.health().reason.startswith("the engine cannot be started: BlockingIOError"))
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Have a method raise BlockingIOError when it is called next."""
    whole = getattr(owner, name)

    async def fail(*args: Any) -> None:
        monkeypatch.setattr(owner, name, whole)
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(owner, name, fail)


class Panic(BaseException):
    """What a library written in Rust raises when it panics."""


async def test_panic_of_a_decoder_ends_its_request_alone() -> None:
    tokens = TOY.continuation((1, 2, 3), 12)

    def decode_most(decoded: Sequence[int]) -> str:
        if tokens[5] in decoded:
            raise Panic("retry-limit-in-match over")
        return decode(decoded)

    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    engine = TextEngine(linked, decode_most)
    await soon(engine.start())
    finish = get_finish(await read(engine, ask()))
    message = "the model's tokenizer fails on this answer: Panic: retry-limit-in-match over"
    assert (finish.reason, finish.message) == ("error", message)
    assert not engine._open
    assert engine.health().state == "ready"
    await soon(engine.stop())


async def test_panic_of_an_engine_ends_its_request_alone() -> None:
    async with running(link_task(lambda: Failing("panic"), TOY)) as engine:
        assert "Panic: NaN" in get_finish(await read(engine, ask())).message
        assert engine.health().state == "ready"


async def test_killed_process_is_replaced() -> None:
    linked = ProcessEngine(TOY)
    async with running(linked) as engine:
        await check_answer(engine)
        for _ in range(3):
            [pid] = linked.supervisor.pids
            stream = engine.submit(ask(length=60))
            os.kill(pid, signal.SIGKILL)
            finish = get_finish(await soon(collect(stream)))
            assert finish.reason in {"error", "length"}
            await until(lambda: engine.health().state == "starting" or linked.supervisor.pids != (pid,))  # noqa: B023
            await until(lambda: engine.health().state == "ready")
            await check_answer(engine)
        assert all("its process was ended by SIGKILL" in loss for loss in linked.losses)
        assert len(linked.losses) == 3


async def test_stopped_process_is_replaced() -> None:
    linked = ProcessEngine(TOY, timeout_s=0.6)
    async with running(linked) as engine:
        [pid] = linked.supervisor.pids
        stream = engine.submit(ask(length=60))
        os.kill(pid, signal.SIGSTOP)
        await soon(collect(stream))
        await until(lambda: len(linked.losses) == 1)
        await until(lambda: engine.health().state == "ready")
        assert linked.supervisor.pids != (pid,)
        await check_answer(engine)


class Stuck(StageEngine):
    """An engine that computes nothing for its first request, or blocks its event loop at it."""

    def __init__(self, *, blocks: bool) -> None:
        self.engine = make_toy_engine(TOY).engine
        self.blocks = blocks

    def submit(self, request: Request) -> Any:
        class Silence:
            async def __aiter__(self) -> AsyncIterator[Delta]:
                await asyncio.Event().wait()
                yield Delta()

            def close(self) -> None:
                """Nothing runs."""

        if self.blocks:
            time.sleep(1.0)
        return Silence()


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [(False, "the engine has given no token for 0.2 s"), (True, "the engine has not answered for 0.1 s")],
)
async def test_engine_that_hangs_is_replaced(blocks: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if blocks:
        monkeypatch.setattr(node_service, "HUNG_S", 0.1)
    engines: list[TokenEngine] = [Stuck(blocks=blocks), make_toy_engine(TOY)]
    linked = link_task(lambda: engines.pop(0), TOY, step_timeout_s=60.0 if blocks else 0.2)
    async with running(linked) as engine:
        finish = get_finish(await read(engine, ask()))
        assert finish.reason == "error"
        assert reason in f"{finish.message} {linked.node.ends}"
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)


async def test_idle_engine_does_not_hang() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY, step_timeout_s=0.1)
    async with running(linked) as engine:
        await check_answer(engine)
        await asyncio.sleep(0.4)
        await check_answer(engine)
        assert linked.losses == []


class Lying(StageEngine):
    """An engine whose deltas are not what a request can have."""

    def __init__(self, **lie: Any) -> None:
        self.engine = make_toy_engine(TOY).engine
        self.lie = lie

    def submit(self, request: Request) -> Any:
        stream, lie = super().submit(request), self.lie

        class Relay:
            async def __aiter__(self) -> AsyncIterator[Delta]:
                async for delta in stream:
                    yield replace(delta, **lie)

            def close(self) -> None:
                stream.close()

        return Relay()


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"index": 1}, "the engine sent answer 1 of a request for 1"),
        ({"index": 200}, "a frame cannot be read"),
        ({"tokens": (-1,)}, "a frame cannot be read"),
        ({"logprobs": (TokenLogprob(1, -1.0),) * 2}, "only some tokens have log-probabilities"),
        ({"ended": "bored"}, "a frame cannot be read"),
    ],
)
async def test_engine_that_lies_is_replaced(lie: dict[str, Any], reason: str) -> None:
    engines: list[TokenEngine] = [Lying(**lie), make_toy_engine(TOY)]
    linked = link_task(lambda: engines.pop(0), TOY)
    async with running(linked) as engine:
        assert get_finish(await read(engine, ask())).reason == "error"
        assert reason in linked.losses[0]
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)


async def test_loss_counts_the_requests_that_had_begun() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    async with running(linked) as engine:
        stream = engine.submit(ask(length=50))
        deltas = aiter(stream)
        await soon(anext(deltas))
        await linked.node.kill()
        await until(lambda: engine.stats()[0].requests_lost == 1)
        stream.close()
