from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from parallax_core.api import (
    BackendFailed,
    Delta,
    Finish,
    Health,
    ParallaxError,
    Request,
    RequestId,
    TokenEngine,
    TokenLogprob,
    Unavailable,
)
from parallax_core.base.errors import Overloaded
from parallax_core.builtin.routing import RoundRobin
from parallax_core.engine.limits import Limits
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.node.whole_model.engine import TextEngine
from parallax_core.node.worker import engine_session
from parallax_core.testing.stage_engine import StageEngine, make_toy_engine
from parallax_core.testing.toy import GREEDY, Toy
from tests.support.engine_workers import LinkedEngine, ProcessEngine, TaskSupervisor, link_task
from tests.unit.node.cluster import soon, until

TOY = Toy(("full", "window", "full"))
NUMBERS = count()


def decode(tokens: Any) -> str:
    return "".join(f"<{token}>" for token in tokens)


def ask(prompt: tuple[int, ...] = (1, 2, 3), length: int = 12, **changes: Any) -> Request:
    request = Request(id=RequestId(f"r{next(NUMBERS)}"), prompt=prompt, max_tokens=length, sampling=GREEDY)
    return replace(request, **changes)


@asynccontextmanager
async def running(linked: LinkedEngine) -> AsyncIterator[TextEngine]:
    engine = TextEngine(linked, decode)
    await soon(engine.start())
    try:
        yield engine
    finally:
        await soon(engine.stop())


async def read(engine: Any, request: Request) -> list[Delta]:
    return await soon(_collect(engine.submit(request)))


async def _collect(stream: Any) -> list[Delta]:
    return [delta async for delta in stream]


async def check_answer(engine: Any) -> None:
    request = ask()
    deltas = await read(engine, request)
    assert [token for delta in deltas for token in delta.tokens] == TOY.continuation(request.prompt, 12)


def get_finish(deltas: list[Delta]) -> Finish:
    assert deltas[-1].finish is not None
    return deltas[-1].finish


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
        await linked.supervisor.kill("worker/0/0")
        assert get_finish(await soon(_collect(stream))).reason == "error"
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
        await linked.supervisor.kill("worker/0/0")
        deltas = await soon(_collect(stream))
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
        await linked.supervisor.kill("worker/0/0")
        await until(lambda: "trying again" in engine.health().reason)
        assert "the engine on node 'worker/0/0': no kernel" in engine.health().reason
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)


def _make_broken() -> TokenEngine:
    raise BackendFailed("no kernel", "build it")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (BackendFailed("no kernel", "build it"), "no kernel"),
        (ZeroDivisionError("x"), "the model could not be loaded: ZeroDivisionError: x"),
        (SystemExit(3), "it wanted to end the process: SystemExit: 3"),
    ],
)
async def test_engine_that_cannot_be_opened_is_an_error_with_the_reason(fault: BaseException, reason: str) -> None:
    def make() -> TokenEngine:
        raise fault

    linked = link_task(make, TOY)
    with pytest.raises(ParallaxError, match=reason) as error:
        await soon(linked.start())
    assert error.value.message.startswith("the engine on node 'worker/0/0': ")
    await soon(linked.stop())
    assert linked.health().state == "failed"


class Blocking(StageEngine):
    """An engine that blocks its event loop while it loads and while it is asked to stop."""

    def __init__(self) -> None:
        self.engine = make_toy_engine(TOY).engine

    async def start(self) -> None:
        time.sleep(0.4)  # noqa: ASYNC251 -- as real engines do
        await super().start()

    async def stop(self) -> None:
        await asyncio.sleep(60)


async def test_engine_that_blocks_its_loop_does_not_hold_up_the_link_nor_the_end() -> None:
    linked = link_task(Blocking, TOY)
    starting = asyncio.create_task(linked.start())
    delays = []
    while not starting.done():
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        delays.append(asyncio.get_running_loop().time() - begun)
    await starting
    assert len(delays) > 5
    await soon(linked.stop())


async def test_aborted_request_is_closed_in_the_engine() -> None:
    made: list[StageEngine] = []

    def make() -> TokenEngine:
        made.append(make_toy_engine(TOY))
        return made[-1]

    async with running(link_task(make, TOY)) as engine:
        stream = engine.submit(ask(length=50))
        async for _ in stream:
            break
        stream.close()
        await until(lambda: not made[0].engine._streams)
        await check_answer(engine)


async def test_stop_string_aborts_the_request_in_the_engine() -> None:
    made: list[StageEngine] = []

    def make() -> TokenEngine:
        made.append(make_toy_engine(TOY))
        return made[-1]

    async with running(link_task(make, TOY)) as engine:
        third = TOY.continuation((1, 2, 3), 3)[2]
        deltas = await read(engine, ask(length=50, stop=(f"<{third}>",)))
        finish = get_finish(deltas)
        assert (finish.reason, finish.output_tokens) == ("stop", sum(len(delta.tokens) for delta in deltas))
        await until(lambda: not made[0].engine._streams)


async def test_options_reach_the_engine_and_progress_the_head() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    heard: list[str] = []
    linked.host._progress = lambda task, done, total, unit="bytes": heard.append(f"{task} {done}/{total}")
    linked.host._assignment = replace(linked.host._assignment, device="gpu:1", max_running=7, dtype="bfloat16")
    async with running(linked) as engine:
        assert isinstance(linked.supervisor, TaskSupervisor)
        [assigned] = linked.supervisor.assigned
        assert (assigned.device, assigned.max_running, assigned.dtype) == ("gpu:1", 7, "bfloat16")
        assert heard == ["loading 1/1"]
        assert engine.max_length == 64
        [status] = engine.describe()
        stage = status.stages[0]
        assert (stage.node, stage.backend, stage.device) == ("worker/0/0", "toy", "toy")
        assert stage.layers is not None
        assert len(stage.layers) == 3


async def test_too_many_requests_are_refused() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    engine = TextEngine(linked, decode, Limits(max_waiting=0))
    await soon(engine.start())
    try:
        limits = engine.limits
        assert limits is not None
        streams = [engine.submit(ask(length=40)) for _ in range(limits.max_running)]
        with pytest.raises(Overloaded):
            engine.submit(ask())
        for stream in streams:
            stream.close()
        await check_answer(engine)
    finally:
        await soon(engine.stop())


async def test_killed_process_is_replaced() -> None:
    linked = ProcessEngine(TOY)
    async with running(linked) as engine:
        await check_answer(engine)
        for _ in range(3):
            [pid] = linked.supervisor.pids
            stream = engine.submit(ask(length=60))
            os.kill(pid, signal.SIGKILL)
            finish = get_finish(await soon(_collect(stream)))
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
        await soon(_collect(stream))
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
        monkeypatch.setattr(engine_session, "HUNG_S", 0.1)
    engines: list[TokenEngine] = [Stuck(blocks=blocks), make_toy_engine(TOY)]
    linked = link_task(lambda: engines.pop(0), TOY, PipelineOptions(step_timeout_s=60.0 if blocks else 0.2))
    async with running(linked) as engine:
        finish = get_finish(await read(engine, ask()))
        assert finish.reason == "error"
        assert isinstance(linked.supervisor, TaskSupervisor)
        assert reason in f"{finish.message} {linked.supervisor.ends}"
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)


async def test_idle_engine_does_not_hang() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY, PipelineOptions(step_timeout_s=0.1))
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


async def test_engine_that_reports_no_progress_is_given_up() -> None:
    over = threading.Event()

    def make() -> TokenEngine:
        over.wait(5)
        return make_toy_engine(TOY)

    linked = link_task(make, TOY)
    linked.host._assignment = replace(linked.host._assignment, load_timeout_s=0.1)
    with pytest.raises(BackendFailed, match=r"it has reported no loading progress for 0\.1 s"):
        await soon(linked.start())
    over.set()
    await soon(linked.stop())


async def test_loss_counts_the_requests_that_had_begun() -> None:
    linked = link_task(lambda: make_toy_engine(TOY), TOY)
    async with running(linked) as engine:
        stream = engine.submit(ask(length=50))
        deltas = aiter(stream)
        await soon(anext(deltas))
        await linked.supervisor.kill("worker/0/0")
        await until(lambda: engine.stats()[0].requests_lost == 1)
        stream.close()
