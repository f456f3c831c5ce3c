from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from parallax_core.api import (
    ArrivalView,
    Delta,
    Engine,
    Finish,
    Health,
    InvalidRequest,
    LayerRange,
    Reason,
    ReplicaView,
    Request,
    RequestId,
    RoutingPolicy,
    Sampling,
    Stream,
    Unavailable,
    UnknownName,
)
from parallax_core.builtin.routing import LeastPendingTokens, PrefixAffinity, RoundRobin
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.recall import BLOCK
from parallax_core.node.router import Router
from parallax_core.testing.toy import Toy

NUMBERS = count()
TOY = Toy()
CONTEXT = 64


class FakeStream:
    """A stream that says what it is told to: deltas, or something to raise."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
        self.num_closed = 0

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while (said := await self.said.get()) is not None:
            if isinstance(said, Exception):
                raise said
            yield said

    def close(self) -> None:
        self.num_closed += 1


class FakeEngine:
    """An engine that does what a test wants it to."""

    def __init__(self) -> None:
        self.state = Health(state="starting")
        self.begin = asyncio.Event()
        self.begin.set()
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.submit_error: Exception | None = None
        self.requests: list[Request] = []
        self.streams: list[FakeStream] = []
        self.num_stopped = 0

    async def start(self) -> None:
        await self.begin.wait()
        if self.start_error:
            self.state = Health(state="failed", reason=str(self.start_error))
            raise self.start_error
        self.state = Health(state="ready")

    async def stop(self) -> None:
        self.num_stopped += 1
        self.state = Health(state="draining", reason="stopped")
        if self.stop_error:
            raise self.stop_error

    def submit(self, request: Request) -> Stream:
        if self.submit_error:
            raise self.submit_error
        self.requests.append(request)
        self.streams.append(FakeStream())
        return self.streams[-1]

    def health(self) -> Health:
        return self.state

    def fail(self) -> None:
        self.state = Health(state="failed", reason="on fire")


def make_request(num_prompt: int = 10, max_tokens: int | None = 5, **more: Any) -> Request:
    prompt = tuple(range(num_prompt))
    sampling = Sampling(temperature=0)
    return Request(id=RequestId(str(next(NUMBERS))), prompt=prompt, max_tokens=max_tokens, sampling=sampling, **more)


def end(reason: Reason = "stop", message: str = "") -> Delta:
    return Delta(finish=Finish(reason=reason, prompt_tokens=0, output_tokens=0, message=message))


async def collect(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream]


async def make_router(num_replicas: int, policy: RoutingPolicy | None = None) -> tuple[Router, list[FakeEngine]]:
    engines = [FakeEngine() for _ in range(num_replicas)]
    router = Router(engines, policy or LeastPendingTokens(), lambda: CONTEXT)
    await router.start()
    return router, engines


def pending(router: Router) -> list[int]:
    return [replica.pending_tokens for replica in router.replicas()]


def requests(router: Router) -> list[int]:
    return [replica.num_requests for replica in router.replicas()]


# Starting and stopping


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


# Health


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


# The account


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
    assert await anext(stream) == end()
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


# Choosing


async def test_requests_go_where_least_is_pending() -> None:
    router, engines = await make_router(2)
    streams = [router.submit(make_request(length)) for length in (50, 10, 10, 10, 10, 10)]
    assert [len(engine.requests) for engine in engines] == [2, 4]
    for stream in streams:
        stream.close()


async def test_requests_go_in_turns() -> None:
    router, engines = await make_router(3, RoundRobin())
    streams = [router.submit(make_request(length)) for length in (50, 10, 10, 10, 10, 10)]
    assert [len(engine.requests) for engine in engines] == [2, 2, 2]
    for stream in streams:
        stream.close()


async def test_full_replica_passes_a_request_on_to_the_next_best() -> None:
    router, engines = await make_router(3)
    router.submit(make_request(30))
    engines[1].submit_error = Unavailable("too many requests wait", retry_after_s=7)
    router.submit(make_request(10))
    assert [len(engine.requests) for engine in engines] == [1, 0, 1]
    engines[0].submit_error = engines[2].submit_error = Unavailable("not now")
    with pytest.raises(Unavailable, match="too many requests wait") as caught:
        router.submit(make_request())
    assert caught.value.retry_after_s == 7
    assert requests(router) == [1, 0, 1]


async def test_replica_that_failed_gets_no_request_although_it_has_nothing_to_do() -> None:
    router, engines = await make_router(2)
    engines[0].fail()
    for _ in range(10):
        router.submit(make_request())
    assert [len(engine.requests) for engine in engines] == [0, 10]


async def test_drained_replica_finishes_what_it_has_and_gets_nothing_new() -> None:
    router, engines = await make_router(2)
    stream = router.submit(make_request())
    router.drain(0)
    for _ in range(3):
        router.submit(make_request())
    assert [len(engine.requests) for engine in engines] == [1, 3]
    engines[0].streams[0].said.put_nowait(end())
    assert await collect(stream) == [end()]
    assert router.replicas()[0].num_requests == 0
    assert router.replicas()[0].is_drained
    router.readmit(0)
    router.submit(make_request())
    assert [len(engine.requests) for engine in engines] == [2, 3]


async def test_replica_that_is_not_there_cannot_be_drained() -> None:
    router, _ = await make_router(2)
    for rank in (-1, 2):
        with pytest.raises(UnknownName, match=f"no replica {rank}"):
            router.drain(rank)
        with pytest.raises(UnknownName, match=f"no replica {rank}"):
            router.readmit(rank)


async def test_policy_sees_only_replicas_that_are_ready_and_may_not_choose_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[ArrivalView, Sequence[ReplicaView]]] = []

    class Stubborn:
        def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
            seen.append((arrival, replicas))
            return 0

    router, engines = await make_router(3, Stubborn())
    router.submit(make_request(10, 5))
    engines[0].fail()
    router.submit(make_request(20, 6, n=2))
    assert [len(engine.requests) for engine in engines] == [1, 1, 0]
    assert seen[1][0] == ArrivalView(number=1, num_prompt=20, max_output=12)
    assert [view.rank for view in seen[1][1]] == [1, 2]
    assert "answered 0" in caplog.text


async def test_prompts_that_begin_alike_go_to_one_replica_while_it_has_no_more_to_do_than_it_may() -> None:
    router, engines = await make_router(3, PrefixAffinity(slack_tokens=100))
    for _ in range(3):
        router.submit(make_request(2 * BLOCK, 1))
    assert [len(engine.requests) for engine in engines] == [2, 1, 0]
    router.submit(make_request(2 * BLOCK, 1, salt="another"))
    assert [len(engine.requests) for engine in engines] == [2, 1, 1]


# Lost replicas


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
    assert again.timeout_s is not None
    assert 50 < again.timeout_s < 60
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
    assert await collect(stream) == [end("error", "on fire")]
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


# Over real engines


def make_engine() -> Engine:
    def decode(tokens: Sequence[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)

    halves = (LayerRange(0, 1), LayerRange(1, 2))
    return PipelineEngine([partial(TOY.open, half, num_pages=40, context=CONTEXT) for half in halves], decode)


async def test_replicas_answer_as_one_would() -> None:
    engines = [make_engine() for _ in range(3)]
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT)
    await router.start()
    try:
        asked = [make_request(1 + number % 9, 1 + number % 5) for number in range(60)]
        answers = await asyncio.gather(*(collect(router.submit(request)) for request in asked))
    finally:
        await router.stop()
    for request, answer in zip(asked, answers, strict=True):
        tokens = [token for delta in answer for token in delta.tokens]
        assert tokens == TOY.continuation(request.prompt, request.max_tokens or 0)
        assert [delta.finish is not None for delta in answer] == [False] * (len(answer) - 1) + [True]
    assert (pending(router), requests(router)) == ([0] * 3, [0] * 3)


class Crowd:
    """Clients that come, read, and go away at any moment."""

    def __init__(self, router: Router, seed: int) -> None:
        self.reasons: list[Reason] = []
        self._router = router
        self._chance = random.Random(seed)

    async def come(self, salt: str) -> None:
        request = make_request(self._chance.randrange(1, 20), self._chance.choice([None, 1, 7, 40]), salt=salt)
        patience = self._chance.choice([1, 2, 5, 1000])
        await asyncio.sleep(self._chance.random() * 0.3)
        stream = self._router.submit(request)
        async for delta in stream:
            assert min(*pending(self._router), *requests(self._router)) >= 0
            patience -= 1
            if delta.finish is not None:
                self.reasons.append(delta.finish.reason)
            elif patience == 0:
                break
        stream.close()


async def stop_later(engine: Engine) -> list[Request]:
    """Stop an engine, and return what it will be asked to serve after that."""
    late: list[Request] = []
    await asyncio.sleep(0.1)
    await engine.stop()
    engine.submit = late.append  # type: ignore[method-assign, assignment]
    return late


@pytest.mark.parametrize("policy", [LeastPendingTokens(), RoundRobin(), PrefixAffinity(slack_tokens=10)], ids=str)
async def test_account_is_never_below_nothing_and_ends_at_nothing(policy: RoutingPolicy) -> None:
    engines = [make_engine() for _ in range(3)]
    router = Router(engines, policy, lambda: CONTEXT)
    crowd = Crowd(router, seed=4)
    await router.start()
    try:
        coming = asyncio.gather(*(crowd.come(str(number % 3)) for number in range(150)))
        late = await stop_later(engines[1])
        await asyncio.wait_for(coming, 60)
        assert router.health().state == "ready"
    finally:
        await router.stop()
    assert (pending(router), requests(router)) == ([0] * 3, [0] * 3)
    assert late == []
    assert set(crowd.reasons) <= {"length", "aborted"}
    assert crowd.reasons.count("length") > 20


async def test_request_that_waits_on_a_replica_that_stops_is_answered_by_another() -> None:
    engines = [make_engine(), make_engine()]
    router = Router(engines, LeastPendingTokens(), lambda: CONTEXT)
    await router.start()
    try:
        request = make_request(5, 6)
        stream = router.submit(request)
        await engines[0].stop()  # before the event loop has let it begin
        tokens = [token for delta in await asyncio.wait_for(collect(stream), 10) for token in delta.tokens]
        assert tokens == TOY.continuation(request.prompt, 6)
    finally:
        await router.stop()
