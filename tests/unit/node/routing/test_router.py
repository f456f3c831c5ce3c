from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from parallax_core.api import (
    Delta,
    Health,
    InvalidRequest,
    Unavailable,
    UnknownName,
)
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.routing.router import Router
from tests.unit.node.cluster import until
from tests.unit.node.replicas import CONTEXT, FakeEngine, collect, end, make_request, make_router, pending, requests


async def test_router_starts_replicas_at_the_same_time() -> None:
    barrier = asyncio.Barrier(3)

    class Patient(FakeEngine):
        async def start(self) -> None:
            await barrier.wait()
            await super().start()

    router = Router([Patient() for _ in range(3)], LeastPendingTokens(), lambda: CONTEXT)
    assert router.health().state == "starting"
    await asyncio.wait_for(router.start(), 5)
    assert router.health() == Health(state="ready")


async def test_start_that_fails_stops_every_replica_and_raises_the_first_error() -> None:
    good, bad, slow, late = engines = [FakeEngine() for _ in range(4)]
    bad.start_error, late.start_error = OSError("no device"), OSError("too late")
    slow.begin.clear()
    late.begin.clear()
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT)
    with pytest.raises(OSError, match="no device"):
        await asyncio.wait_for(router.start(), 5)
    assert [engine.num_stopped for engine in engines] == [1, 1, 1, 1]
    assert good.state.state == "draining"
    assert slow.state.state == "draining"
    assert router.health() == Health(state="failed", reason="no device")
    with pytest.raises(Unavailable, match="failed"):
        router.submit(make_request())


async def test_start_that_is_cancelled_stops_every_replica() -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].begin.clear()
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT)
    starting = asyncio.ensure_future(router.start())
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [engine.num_stopped for engine in engines] == [1, 1]


async def test_stop_is_legal_while_starting() -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].begin.clear()
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT)
    starting = asyncio.ensure_future(router.start())
    await asyncio.sleep(0.01)
    await asyncio.wait_for(router.stop(), 5)
    with pytest.raises(Unavailable, match="draining"):
        await starting
    assert all(engine.num_stopped for engine in engines)
    assert router.health().state == "draining"


async def test_replica_is_stopped_only_after_its_start_has_ended() -> None:
    class Slow(FakeEngine):
        async def start(self) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                self.begin.set()

        async def stop(self) -> None:
            assert self.begin.is_set()
            await super().stop()

    engine = Slow()
    engine.begin.clear()
    router = Router([engine], LeastPendingTokens(), lambda: CONTEXT)
    starting = asyncio.ensure_future(router.start())
    await asyncio.sleep(0.01)
    await router.stop()
    with pytest.raises(Unavailable):
        await starting


async def test_stop_is_legal_before_start_and_twice() -> None:
    engine = FakeEngine()
    router = Router([engine], LeastPendingTokens(), lambda: CONTEXT)
    await router.stop()
    await router.stop()
    with pytest.raises(Unavailable, match="draining"):
        await router.start()
    assert not engine.requests
    assert engine.state.state == "draining"


async def test_stop_stops_all_even_if_one_raises() -> None:
    router, engines = await make_router(3)
    engines[0].stop_error = OSError("stuck")
    with pytest.raises(OSError, match="stuck"):
        await router.stop()
    assert [engine.num_stopped for engine in engines] == [1, 1, 1]


async def test_router_is_ready_while_any_replica_is() -> None:
    router, engines = await make_router(3)
    engines[0].fail()
    router.drain(2)
    health = router.health()
    assert health.state == "ready"
    assert "2 of 3 replicas are not ready: 0 is failed: on fire; 2 is draining" in health.reason
    engines[1].fail()
    assert router.health().state == "draining"
    router.readmit(2)
    assert router.health().state == "ready"
    engines[2].fail()
    assert router.health().state == "failed"
    engines[2].state = Health(state="starting")
    assert router.health().state == "starting"
    with pytest.raises(Unavailable, match="starting") as caught:
        router.submit(make_request())
    assert "on fire" in caught.value.hint


async def test_router_of_one_replica_has_its_health() -> None:
    router, [engine] = await make_router(1)
    engine.fail()
    assert router.health() == Health(state="failed", reason="on fire")


async def test_account_counts_down_as_answers_come() -> None:
    router, [engine] = await make_router(1)
    stream = aiter(router.submit(make_request(10, 5, n=2)))
    assert pending(router) == [20]
    said = engine.streams[0].said
    for delta, left in [
        (Delta(tokens=(1, 2)), 8),  # the prompt is done
        (Delta(tokens=(1,), index=1), 7),
        (Delta(tokens=(3,), ended="stop"), 4),  # what the first answer may have held is free
        (Delta(tokens=(2, 3, 4, 5), index=1), 0),
        (Delta(tokens=(6, 7, 8), index=1), 0),  # more than was asked for
    ]:
        said.put_nowait(delta)
        assert await anext(stream) == delta
        assert pending(router) == [left]
        assert requests(router) == [1]
    said.put_nowait(end())
    last = await anext(stream)
    assert last.finish is not None
    assert replace(last, finish=replace(last.finish, timing=None)) == end()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert (pending(router), requests(router)) == ([0], [0])


async def test_request_without_a_limit_counts_as_what_the_context_holds() -> None:
    router, _ = await make_router(1)
    stream = router.submit(make_request(10, None, n=2))
    assert pending(router) == [10 + 2 * (CONTEXT - 10)]
    stream.close()


async def test_closed_stream_is_aborted_and_taken_off_once() -> None:
    router, [engine] = await make_router(1)
    kept, stream = router.submit(make_request()), router.submit(make_request())
    stream.close()
    stream.close()
    assert engine.streams[1].num_closed == 1
    assert (pending(router), requests(router)) == ([15], [1])
    kept.close()
    assert (pending(router), requests(router)) == ([0], [0])


async def test_reader_that_goes_away_aborts_the_request() -> None:
    router, [engine] = await make_router(1)
    reading = asyncio.ensure_future(collect(router.submit(make_request())))
    engine.streams[0].said.put_nowait(Delta(tokens=(1,)))
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert engine.streams[0].num_closed == 1
    assert (pending(router), requests(router)) == ([0], [0])


async def test_request_that_is_refused_leaves_the_account_as_it_was() -> None:
    router, engines = await make_router(2)
    for engine in engines:
        engine.submit_error = InvalidRequest("nonsense", "prompt")
    with pytest.raises(InvalidRequest, match="nonsense"):
        router.submit(make_request())
    assert (pending(router), requests(router)) == ([0, 0], [0, 0])


async def test_replica_that_is_added_gets_requests_once_it_is_ready() -> None:
    router, [first] = await make_router(1)
    late = FakeEngine()
    late.begin.clear()
    router.add(2, late)
    assert router.health() == Health(state="ready", reason="1 of 2 replicas are not ready: 2 is starting: ")
    streams = [router.submit(make_request()) for _ in range(2)]
    assert (len(first.requests), len(late.requests)) == (2, 0)
    late.begin.set()
    await until(lambda: late.state.state == "ready")
    streams.append(router.submit(make_request()))
    assert (len(first.requests), len(late.requests)) == (2, 1)
    assert [status.rank for status in router.describe()] == [0, 2]
    for stream in streams:
        stream.close()


async def test_replica_that_is_added_and_does_not_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    router, _ = await make_router(1)
    bad = FakeEngine()
    bad.start_error = OSError("no device")
    router.add(1, bad)
    await until(lambda: "replica did not start rank=1" in caplog.text)
    assert router.health().state == "ready"


async def test_replica_that_is_removed_while_it_starts_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    router, _ = await make_router(1)
    bad = FakeEngine()
    bad.start_error = Unavailable("the engine was stopped while it started")
    with caplog.at_level("INFO"):
        router.add(1, bad)
        await until(lambda: "replica did not start rank=1: the engine was stopped while it started" in caplog.text)
    assert "Traceback" not in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO"]


async def test_requests_of_a_replica_that_is_removed_go_on_on_another() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    [owner] = [engine for engine in engines if engine.requests]
    [other] = [engine for engine in engines if engine is not owner]
    asking = asyncio.create_task(collect(stream))
    rank = engines.index(owner)
    await router.remove(rank)
    owner.streams[0].said.put_nowait(end("aborted"))
    await asyncio.wait_for(other.asked.wait(), 5)
    other.streams[0].said.put_nowait(end())
    assert (await asking)[-1] == end()
    assert owner.num_stopped == 1
    assert [status.rank for status in router.describe()] == [1 - rank]
    with pytest.raises(UnknownName, match=f"there is no replica {rank}"):
        router.drain(rank)


async def test_stop_ends_replicas_that_are_being_added() -> None:
    router, _ = await make_router(1)
    late = FakeEngine()
    late.begin.clear()
    router.add(1, late)
    await asyncio.wait_for(router.stop(), 5)
    assert late.num_stopped == 1


class FullEngine(FakeEngine):
    """An engine that says whether it has room."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.is_full = name, True

    def check_room(self) -> None:
        if self.is_full:
            raise Unavailable(f"{self.name} is full")


async def test_room_is_refused_for_the_reason_of_the_first_replica_if_none_has_any() -> None:
    engines = [FullEngine(name) for name in ("first", "second")]
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT)
    await router.start()
    with pytest.raises(Unavailable, match="first is full"):
        router.check_room()
    engines[1].is_full = False
    router.check_room()
    await router.stop()
    with pytest.raises(Unavailable):
        router.check_room()
