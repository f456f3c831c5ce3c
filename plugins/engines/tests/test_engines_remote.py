from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from parallax_core.api import (
    BackendFailed,
    ParallaxError,
    TokenEngine,
)
from parallax_core.base.errors import Overloaded
from parallax_core.engine.limits import Limits
from parallax_core.testing.stage_engine import StageEngine, make_toy_engine
from parallax_core.testing.token_engine import TextEngine
from plugins.engines.tests.linked import (
    TOY,
    ask,
    check_answer,
    decode,
    get_finish,
    read,
    running,
)
from tests.support.engine_workers import link_task
from tests.unit.node.cluster import soon, until


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
        await until(lambda: made[0].stats()[0].running == 0)
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
        await until(lambda: made[0].stats()[0].running == 0)


async def test_options_reach_the_engine_and_progress_the_head() -> None:
    heard: list[str] = []

    def hear(task: str, done: int, total: int | None, unit: str = "bytes") -> None:
        heard.append(f"{task} {done}/{total}")

    given: dict[str, Any] = {"device": "gpu:1", "max_running": 7, "dtype": "bfloat16"}
    linked = link_task(lambda: make_toy_engine(TOY), TOY, progress=hear, **given)
    async with running(linked) as engine:
        [assigned] = linked.node.plans
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


async def test_engine_that_reports_no_progress_is_given_up() -> None:
    over = threading.Event()

    def make() -> TokenEngine:
        over.wait(5)
        return make_toy_engine(TOY)

    linked = link_task(make, TOY, load_timeout_s=0.1)
    with pytest.raises(BackendFailed, match=r"it has reported no loading progress for 0\.1 s"):
        await soon(linked.start())
    over.set()
    await soon(linked.stop())
