from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parallax_core.base.errors import InvalidRequest, Overloaded, ParallaxError, Unavailable
from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, EngineStats, Health, Request, Stream
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.status import ReplicaLimits, ReplicaStatus
from parallax_core.engine.limits import LEAST_WAITING, Limits
from parallax_core.node.text_engine import TextEngine
from tests.unit.node.cluster import soon
from tests.unit.server.scripted import ScriptedEngine

LENGTH = 100


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


class Engine(ScriptedEngine):
    """Gives each request the same text, which may be held back; it is ready once it was started."""

    def __init__(self) -> None:
        super().__init__(lambda script: list(map(ord, script)), LENGTH)
        self.is_running = False

    def choose(self, request: Request) -> str:
        return "abcdef"

    async def start(self) -> None:
        self.is_running = True

    async def stop(self) -> None:
        self.is_running = False

    def submit(self, request: Request) -> Stream:
        if not self.is_running:
            raise Unavailable("it has not started")
        return super().submit(request)

    def health(self) -> Health:
        return Health(state="ready" if self.is_running else "starting")


class MeasuredEngine(Engine):
    """Has statistics and a status of its own, and may have no room."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: ParallaxError | None = None

    def stats(self) -> tuple[EngineStats, ...]:
        return (EngineStats(running=3),)

    def describe(self) -> tuple[ReplicaStatus, ...]:
        return (ReplicaStatus(health=self.health(), num_losses=7, poolings=("mean",)),)

    def check_room(self) -> None:
        if self.fault is not None:
            raise self.fault


def ask(**given: Any) -> Request:
    return Request(**{"id": RequestId("1"), "prompt": (1, 2), "max_tokens": 6, "sampling": Sampling(), **given})


async def read(stream: Any) -> list[Delta]:
    return [delta async for delta in stream]


@asynccontextmanager
async def started(inner: Engine, limits: Limits | None = None) -> AsyncIterator[TextEngine]:
    engine = TextEngine(inner, decode, limits)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_answer_has_text_and_ends_at_a_stop_string() -> None:
    inner = Engine()
    async with started(inner) as engine:
        assert engine.health().state == "ready"
        deltas = await read(engine.submit(ask(stop=("de",), timeout_s=60)))
        assert "".join(delta.text for delta in deltas) == "abc"
        finish = deltas[-1].finish
        assert finish is not None
        assert (finish.reason, finish.prompt_tokens, finish.output_tokens) == ("stop", 2, 5)
        [asked] = inner.requests
        assert (asked.stop, asked.timeout_s, asked.max_tokens) == ((), None, 6)
        assert engine.describe()[0].num_requests == 0
    assert not inner.is_running


async def test_engine_says_why_it_takes_no_requests_before_it_has_started() -> None:
    engine = TextEngine(Engine(), decode)
    with pytest.raises(Unavailable, match="it has not started"):
        engine.submit(ask(prompt=()))
    assert (engine.limits, engine.max_length) == (None, 0)
    engine.check_room()
    [status] = engine.describe()
    assert (status.health.state, status.limits, status.takes_grammars) == ("starting", None, True)


async def test_request_that_can_never_be_served_does_not_reach_the_engine() -> None:
    inner = Engine()
    async with started(inner) as engine:
        with pytest.raises(InvalidRequest):
            engine.submit(ask(prompt=(1,) * (LENGTH + 1)))
        assert inner.requests == []
        assert engine.max_length == LENGTH


@pytest.mark.parametrize(("wanted", "most"), [(None, LEAST_WAITING), (0, 0), (2, 2)])
async def test_requests_beyond_the_limits_are_refused_until_one_has_ended(wanted: int | None, most: int) -> None:
    inner = Engine()
    inner.gate = asyncio.Event()
    async with started(inner, Limits(max_waiting=wanted)) as engine:
        assert engine.limits == ReplicaLimits(max_running=8, max_waiting=most, max_batch_tokens=64)
        streams = [engine.submit(ask()) for _ in range(8 + most)]
        assert engine.describe()[0].num_requests == 8 + most
        with pytest.raises(Overloaded, match=f"8 requests are running and {most} are waiting already"):
            engine.check_room()
        with pytest.raises(Overloaded):
            engine.submit(ask())
        streams[0].close()
        streams[0].close()
        assert engine.describe()[0].num_requests == 7 + most
        engine.check_room()
        for stream in streams:
            stream.close()
        assert engine.describe()[0].num_requests == 0


async def test_engine_that_has_no_room_says_so_itself() -> None:
    inner = MeasuredEngine()
    async with started(inner) as engine:
        inner.fault = Overloaded("its own queue is full", "wait")
        with pytest.raises(Overloaded, match="its own queue"):
            engine.submit(ask())
        assert inner.requests == []


async def test_status_is_the_engines_own_with_what_core_counts() -> None:
    inner = MeasuredEngine()
    engine = TextEngine(inner, decode)
    assert engine.describe()[0].poolings == ("mean",)
    await engine.start()
    inner.gate = asyncio.Event()
    stream = engine.submit(ask())
    assert engine.stats() == (EngineStats(running=3),)
    [status] = engine.describe()
    assert (status.num_losses, status.num_requests, status.stats.running) == (7, 1, 3)
    assert (status.poolings, status.takes_grammars, status.limits) == ((), True, engine.limits)
    stream.close()
    await engine.stop()
    inner.info = dataclasses.replace(inner.info, max_running=LEAST_WAITING)
    await engine.start()
    assert engine.limits is not None
    assert engine.limits.max_waiting == 2 * LEAST_WAITING
    plain = TextEngine(Engine(), decode)
    assert plain.stats() == ()
    assert plain.describe()[0].stats == EngineStats()


async def test_request_times_out_after_the_time_it_has_left() -> None:
    inner = Engine()
    inner.gate = asyncio.Event()
    async with started(inner) as engine:
        [delta] = await soon(read(engine.submit(ask(timeout_s=5.0, waited_s=4.99))))
        assert delta.finish is not None
        assert (delta.finish.reason, delta.finish.message) == ("timeout", "timed out after 5 seconds")
        [late] = await soon(read(engine.submit(ask(timeout_s=1.0, waited_s=9.0))))
        assert late.finish is not None
        assert engine.describe()[0].num_requests == 0
        closed = engine.submit(ask(timeout_s=0.001))
        closed.close()
        assert await soon(read(closed)) == []


async def test_text_that_cannot_be_made_ends_the_request() -> None:
    def fail(tokens: Sequence[int]) -> str:
        raise ZeroDivisionError(f"no text for {len(tokens)} tokens")

    engine = TextEngine(Engine(), fail)
    await engine.start()
    [delta] = await read(engine.submit(ask()))
    assert delta.finish is not None
    assert delta.finish.reason == "error"
    assert delta.finish.message.startswith("the model's tokenizer fails on this answer: ZeroDivisionError: no text for")
    assert engine.describe()[0].num_requests == 0
    await engine.stop()


async def test_time_that_a_request_has_waited_is_taken_off_its_timeout() -> None:
    inner = Engine()
    inner.gate = asyncio.Event()
    async with started(inner) as engine:
        stream = engine.submit(ask(timeout_s=0.03))
        inner.gate.set()
        deltas = await read(stream)
        finish = deltas[-1].finish
        assert finish is not None
        assert finish.reason == "stop"
        inner.gate.clear()
        begun = asyncio.get_running_loop().time()
        [late] = await soon(read(engine.submit(ask(timeout_s=30.0, waited_s=29.99))))
        assert asyncio.get_running_loop().time() - begun < 15
        assert late.finish is not None
