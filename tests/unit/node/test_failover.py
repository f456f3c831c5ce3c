"""Requests that move to another replica when theirs is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from parallax_core.api import (
    Delta,
    Finish,
    Health,
    Request,
    RequestId,
    Timing,
    Unavailable,
)
from parallax_core.base.errors import Overloaded
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.cluster.routing.prefix_index import BLOCK
from parallax_core.node.routing.attempt import MOST_MOVES
from parallax_core.node.routing.router import Router
from parallax_policies.routing import PrefixAffinity
from tests.unit.node.replicas import CONTEXT, FakeEngine, collect, end, make_request, make_router, pending, requests


async def test_request_begins_again_elsewhere_when_its_replica_is_lost_before_it_answers() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request(10, 5, timeout_s=60))
    engines[0].fail()
    engines[0].streams[0].said.put_nowait(end("error", "on fire"))
    reading = asyncio.ensure_future(collect(stream))
    await asyncio.sleep(0.01)
    assert (pending(router), requests(router)) == ([0, 15], [0, 1])
    [again] = engines[1].requests
    assert again.id == engines[0].requests[0].id
    assert again.timeout_s == 60
    assert 0 < again.waited_s < 10
    for delta in (Delta(tokens=(1,)), end()):
        engines[1].streams[0].said.put_nowait(delta)
    assert await reading == [Delta(tokens=(1,)), end()]
    assert (pending(router), requests(router)) == ([0, 0], [0, 0])


async def test_request_goes_to_each_replica_once_and_ends_as_the_last_ended_it() -> None:
    router, engines = await make_router(3)
    reading = asyncio.ensure_future(collect(router.submit(make_request())))
    for rank, engine in enumerate(engines):
        await asyncio.sleep(0.01)
        engine.state = Health(state="draining", reason="restarting")
        engine.streams[0].said.put_nowait(end("aborted", f"replica {rank} goes away"))
        await asyncio.sleep(0.01)
        engine.state = Health(state="ready")
    assert await asyncio.wait_for(reading, 5) == [end("aborted", "replica 2 goes away")]
    assert [len(engine.requests) for engine in engines] == [1, 1, 1]
    assert (pending(router), requests(router)) == ([0] * 3, [0] * 3)


async def test_request_that_has_answered_is_not_begun_again() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    engines[0].fail()
    for delta in (Delta(tokens=(1,)), end("error", "on fire")):
        engines[0].streams[0].said.put_nowait(delta)
    assert await collect(stream) == [Delta(tokens=(1,)), end("error", "on fire")]
    assert not engines[1].requests


async def test_answer_of_one_delta_stands_although_its_replica_is_lost() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    engines[0].fail()
    whole = replace(end("length"), tokens=(1,))
    engines[0].streams[0].said.put_nowait(whole)
    assert await collect(stream) == [whole]
    assert not engines[1].requests


async def test_replica_whose_stream_breaks_off_is_left_with_nothing() -> None:
    router, engines = await make_router(2)
    reading = asyncio.ensure_future(collect(router.submit(make_request(10, 5))))
    engines[0].fail()
    engines[0].streams[0].said.put_nowait(OSError("cut off"))
    await asyncio.sleep(0.01)
    assert engines[0].streams[0].num_closed == 1
    assert (pending(router), requests(router)) == ([0, 15], [0, 1])
    engines[1].streams[0].said.put_nowait(end())
    assert await reading == [end()]


async def test_replica_that_comes_back_has_lost_what_it_knew() -> None:
    router, engines = await make_router(2, PrefixAffinity())
    request = make_request(2 * BLOCK, 1)
    reading = asyncio.ensure_future(collect(router.submit(request)))
    engines[0].fail()
    engines[0].streams[0].said.put_nowait(end("error", "on fire"))
    await asyncio.sleep(0.01)
    engines[0].state = Health(state="ready")
    router.submit(replace(request, id=RequestId("again")))
    assert [len(engine.requests) for engine in engines] == [1, 2]
    reading.cancel()


async def test_request_that_fails_on_a_replica_that_goes_on_is_not_begun_again() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    engines[0].streams[0].said.put_nowait(end("error", "timed out"))
    assert await collect(stream) == [end("error", "timed out")]
    assert not engines[1].requests


async def test_request_whose_time_is_over_is_not_begun_again() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request(timeout_s=0.01))
    await asyncio.sleep(0.02)
    engines[0].fail()
    engines[0].streams[0].said.put_nowait(end("error", "on fire"))
    [last] = await collect(stream)
    assert last.finish is not None
    assert (last.finish.reason, last.finish.message) == ("timeout", "timed out after 0.01 seconds")
    assert not engines[1].requests


async def test_request_that_nobody_else_takes_ends_as_its_replica_ended_it() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    engines[0].fail()
    engines[1].submit_error = Unavailable("too many requests wait")
    engines[0].streams[0].said.put_nowait(end("error", "on fire"))
    assert await collect(stream) == [end("error", "on fire")]


async def test_nothing_is_begun_again_while_the_router_stops() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    await router.stop()
    engines[1].state = Health(state="ready")
    engines[0].streams[0].said.put_nowait(end("aborted", "bye"))
    assert await collect(stream) == [end("aborted", "bye")]
    assert not engines[1].requests


@pytest.mark.parametrize("said", [None, OSError("cut off")], ids=["ends", "raises"])
async def test_stream_that_breaks_its_word_still_ends_with_one_finish(said: Exception | None) -> None:
    router, [engine] = await make_router(1)
    stream = router.submit(make_request())
    for each in (Delta(tokens=(1,)), said):
        engine.streams[0].said.put_nowait(each)
    first, last = await collect(stream)
    assert first == Delta(tokens=(1,))
    assert last.finish is not None
    assert last.finish.reason == "error"
    assert ("cut off" if said else "without a finish") in last.finish.message
    assert (pending(router), requests(router)) == ([0], [0])


async def test_request_that_was_not_answered_waits_for_a_replica_that_is_being_repaired() -> None:
    router, [engine] = await make_router(1)
    reading = asyncio.ensure_future(collect(router.submit(make_request())))
    await asyncio.sleep(0.01)
    engine.state = Health(state="starting", reason="being repaired")
    engine.submit_error = Unavailable("not yet")
    engine.streams[0].said.put_nowait(end("error", "a stage was lost"))
    await asyncio.sleep(0.1)
    assert not reading.done()
    engine.asked.clear()
    engine.state, engine.submit_error = Health(state="ready"), None
    await asyncio.wait_for(engine.asked.wait(), 5)
    engine.streams[1].said.put_nowait(end())
    assert await asyncio.wait_for(reading, 5) == [end()]
    assert (pending(router), requests(router)) == ([0], [0])


async def test_request_ends_when_the_replica_cannot_be_repaired() -> None:
    router, [engine] = await make_router(1)
    reading = asyncio.ensure_future(collect(router.submit(make_request())))
    await asyncio.sleep(0.01)
    engine.state = Health(state="starting", reason="being repaired")
    engine.streams[0].said.put_nowait(end("error", "a stage was lost"))
    await asyncio.sleep(0.1)
    engine.fail()
    assert await asyncio.wait_for(reading, 5) == [end("error", "a stage was lost")]


async def test_request_that_is_closed_while_it_waits_ends_at_once() -> None:
    router, [engine] = await make_router(1)
    stream = router.submit(make_request())
    reading = asyncio.ensure_future(collect(stream))
    await asyncio.sleep(0.01)
    engine.state = Health(state="starting", reason="being repaired")
    engine.streams[0].said.put_nowait(end("error", "a stage was lost"))
    await asyncio.sleep(0.1)
    stream.close()
    engine.state = Health(state="ready")
    assert await asyncio.wait_for(reading, 5) == []
    assert (pending(router), requests(router)) == ([0], [0])


async def test_request_begins_again_only_so_often() -> None:
    router, [engine] = await make_router(1)
    reading = asyncio.ensure_future(collect(router.submit(make_request())))
    for number in range(MOST_MOVES + 1):
        await asyncio.wait_for(engine.asked.wait(), 5)
        engine.asked.clear()
        engine.state = Health(state="starting", reason="being repaired")
        engine.submit_error = Unavailable("not yet")
        engine.streams[number].said.put_nowait(end("error", f"loss {number}"))
        await asyncio.sleep(0.02)
        engine.state, engine.submit_error = Health(state="ready"), None
    assert await asyncio.wait_for(reading, 5) == [end("error", f"loss {MOST_MOVES}")]


class ResumableEngine(FakeEngine):
    """An engine that continues the answers of others."""

    def can_resume(self, request: Request) -> bool:
        return request.adapter == ""


async def open_resumable(num_replicas: int, recovery_timeout_s: float = 5.0) -> tuple[Router, list[ResumableEngine]]:
    engines = [ResumableEngine() for _ in range(num_replicas)]
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT, recovery_timeout_s)
    await router.start()
    return router, engines


def lose(engine: FakeEngine, number: int = 0) -> None:
    """Have an engine fail, and end one of its streams."""
    engine.fail()
    engine.streams[number].said.put_nowait(end("error", "on fire"))


async def test_begun_answers_go_on_elsewhere_after_the_tokens_that_were_read() -> None:
    router, engines = await open_resumable(2)
    stream = router.submit(make_request(10, 5, n=2))
    said = [Delta(tokens=(1,)), Delta(tokens=(2,), index=1), Delta(tokens=(3,))]
    for delta in said:
        engines[0].streams[0].said.put_nowait(delta)
    lose(engines[0])
    reading = asyncio.ensure_future(collect(stream))
    await asyncio.wait_for(engines[1].asked.wait(), 5)
    [again] = engines[1].requests
    assert again.delivered == ((1, 3), (2,))
    assert (pending(router), requests(router)) == ([0, 10 + 3 + 2 * ((2 * 5 - 3) // 2)], [0, 1])
    rest = [Delta(tokens=(4,)), end("length")]
    for delta in rest:
        engines[1].streams[0].said.put_nowait(delta)
    assert await asyncio.wait_for(reading, 5) == [*said, *rest]
    assert (pending(router), requests(router)) == ([0, 0], [0, 0])


async def test_answer_that_has_ended_is_said_to_have_when_the_others_go_on_elsewhere() -> None:
    router, engines = await open_resumable(3)
    stream = router.submit(make_request(10, 5, n=2))
    for delta in (Delta(tokens=(1,)), Delta(tokens=(2,), index=1), Delta(tokens=(3,), ended="length")):
        engines[0].streams[0].said.put_nowait(delta)
    lose(engines[0])
    reading = asyncio.ensure_future(collect(stream))
    for engine, tokens in ((engines[1], (2,)), (engines[2], (2, 5))):
        await asyncio.wait_for(engine.asked.wait(), 5)
        assert (engine.requests[0].delivered, engine.requests[0].ended) == (((1, 3), tokens), frozenset({0}))
        engine.streams[0].said.put_nowait(Delta(tokens=(5,), index=1))
        if engine is engines[1]:
            lose(engine)
    engines[2].streams[0].said.put_nowait(end("length"))
    await asyncio.wait_for(reading, 5)


async def test_time_between_two_replicas_is_that_of_a_recovery() -> None:
    router, engines = await open_resumable(2)
    stream = router.submit(make_request())
    engines[0].streams[0].said.put_nowait(Delta(tokens=(1,)))
    deltas = aiter(stream)
    await anext(deltas)
    lose(engines[0])
    engines[1].submit_error = Overloaded("full")
    waiting = asyncio.ensure_future(anext(deltas))
    await asyncio.sleep(0.1)
    engines[1].submit_error = None
    await asyncio.wait_for(engines[1].asked.wait(), 5)
    engines[1].streams[0].said.put_nowait(Delta(tokens=(2,)))
    finish = Finish(reason="length", prompt_tokens=10, output_tokens=2, timing=Timing(queued_s=9.0, stages_s=(0.5,)))
    engines[1].streams[0].said.put_nowait(Delta(finish=finish))
    assert (await waiting).tokens == (2,)
    last = (await anext(deltas)).finish
    assert last is not None
    assert last.timing is not None
    assert last.timing.stages_s == (0.5,)
    assert last.timing.queued_s == 0
    assert 0.1 <= last.timing.recovery_s <= last.timing.decode_s < 5


async def test_begun_answer_that_no_other_engine_can_continue_ends() -> None:
    router, engines = await open_resumable(2)
    stream = router.submit(make_request(adapter="poet"))
    engines[0].streams[0].said.put_nowait(Delta(tokens=(1,)))
    lose(engines[0])
    assert await collect(stream) == [Delta(tokens=(1,)), end("error", "on fire")]
    assert not engines[1].requests


async def test_most_urgent_request_gets_the_first_room_and_new_ones_wait_behind_it() -> None:
    router, engines = await open_resumable(2)
    engines[1].submit_error = Overloaded("full")
    readings = [
        asyncio.ensure_future(collect(router.submit(make_request(10, 5, priority=priority)))) for priority in (2, 0, 1)
    ]
    await asyncio.sleep(0)
    for number in range(3):
        lose(engines[0], number)
    await asyncio.sleep(0.02)
    engines[1].submit_error = None
    with pytest.raises(Overloaded, match="requests of a lost replica are waiting already"):
        router.submit(make_request())
    while len(engines[1].requests) < 3:
        await asyncio.wait_for(engines[1].asked.wait(), 5)
        await asyncio.sleep(0.01)
    assert [request.priority for request in engines[1].requests] == [0, 1, 2]
    for stream in engines[1].streams:
        stream.said.put_nowait(end())
    assert await asyncio.wait_for(asyncio.gather(*readings), 5) == [[end()]] * 3
    router.submit(make_request()).close()


async def test_request_for_which_there_is_no_room_in_time_ends_with_a_timeout() -> None:
    router, engines = await open_resumable(2, recovery_timeout_s=0.1)
    engines[1].submit_error = Overloaded("full")
    stream = router.submit(make_request())
    engines[0].streams[0].said.put_nowait(Delta(tokens=(1,)))
    lose(engines[0])
    [_, last] = await asyncio.wait_for(collect(stream), 5)
    assert last.finish is not None
    assert (last.finish.reason, last.finish.output_tokens) == ("timeout", 1)
    assert last.finish.message == "its replica was lost, and no other one had room for it within 0.1 s"


async def test_request_may_move_again_and_again_while_it_gains_tokens() -> None:
    router, [engine] = await open_resumable(1)
    reading = asyncio.ensure_future(collect(router.submit(make_request(10, 20))))
    for number in range(2 * MOST_MOVES):
        await asyncio.wait_for(engine.asked.wait(), 5)
        engine.asked.clear()
        engine.streams[number].said.put_nowait(Delta(tokens=(number,)))
        engine.state = Health(state="starting", reason="being repaired")
        engine.streams[number].said.put_nowait(end("error", f"loss {number}"))
        await asyncio.sleep(0.02)
        engine.state = Health(state="ready")
    await asyncio.wait_for(engine.asked.wait(), 5)
    assert engine.requests[-1].delivered == (tuple(range(2 * MOST_MOVES)),)
    engine.streams[-1].said.put_nowait(end())
    assert len(await asyncio.wait_for(reading, 5)) == 2 * MOST_MOVES + 1


async def test_request_whose_reader_is_cancelled_as_it_is_placed_is_given_up() -> None:
    router, engines = await open_resumable(2)
    reading = asyncio.ensure_future(collect(router.submit(make_request())))
    await asyncio.sleep(0)
    lose(engines[0])
    while not engines[1].requests:  # noqa: ASYNC110 -- nothing is set when it is asked
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert engines[1].streams[0].num_closed > 0
    assert (pending(router), requests(router)) == ([0, 0], [0, 0])


class Panic(BaseException):
    pass


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
async def test_request_ends_as_its_replica_ended_it_when_another_one_breaks_as_it_is_asked(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    router, engines = await open_resumable(2)
    engines[1].submit_error = kind("out of order")
    stream = router.submit(make_request())
    engines[0].streams[0].said.put_nowait(Delta(tokens=(1,)))
    lose(engines[0])
    assert await asyncio.wait_for(collect(stream), 5) == [Delta(tokens=(1,)), end("error", "on fire")]
    assert "request cannot be moved" in caplog.text


async def test_request_that_waits_for_a_replica_ends_when_the_task_that_moves_requests_does() -> None:
    router, engines = await open_resumable(2)
    stream = router.submit(make_request())
    engines[0].streams[0].said.put_nowait(Delta(tokens=(1,)))
    engines[1].state = Health(state="starting")
    reading = asyncio.create_task(collect(stream))
    await asyncio.sleep(0)
    lose(engines[0])
    while not (moving := [task for task in asyncio.all_tasks() if task.get_name() == "MoveQueue._run"]):  # noqa: ASYNC110
        await asyncio.sleep(0)
    moving[0].cancel()
    assert await asyncio.wait_for(reading, 5) == [Delta(tokens=(1,)), end("error", "on fire")]
