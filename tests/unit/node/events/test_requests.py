"""What is told of requests, over an engine of the toy."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from parallax_core.api import EngineReady, Event, Request, RequestBegan, RequestEnded, RequestId, Sampling, Stage
from parallax_core.base.errors import BackendFailed, InvalidRequest
from parallax_core.node.events.requests import RequestEvents
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import Toy
from parallax_policies.routing import RoundRobin

TOY = Toy(layers=("full", "full"))


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_request(name: str, length: int = 3, max_tokens: int = 4) -> Request:
    return Request(
        id=RequestId(name), prompt=tuple(range(1, length + 1)), max_tokens=max_tokens, sampling=Sampling(temperature=0)
    )


def make_router(told: list[Event], now: Callable[[], float] | None = None) -> Router:
    clock = itertools.count()
    watch = RequestEvents("toy", told.append, wall=lambda: 1000.0, now=now or (lambda: float(next(clock))))
    engine = PipelineEngine(LocalExecutor([lambda: TOY.open(num_pages=40)]), decode)
    return Router([engine], RoundRobin(), lambda: 64, events=watch)


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
async def router(told: list[Event]) -> AsyncIterator[Router]:
    router = make_router(told)
    await router.start()
    yield router
    await router.stop()


async def test_request_is_told_of_at_its_beginning_and_its_end(router: Router, told: list[Event]) -> None:
    deltas = [delta async for delta in router.submit(make_request("r"))]
    ready, began, ended = told
    assert ready == EngineReady(at=1000.0, model="toy", load_s=1.0)
    assert began == RequestBegan(at=1000.0, model="toy", id=RequestId("r"), prompt_tokens=3)
    assert isinstance(ended, RequestEnded)
    assert ended.finish == deltas[-1].finish
    assert (ended.finish.reason, ended.finish.output_tokens) == ("length", 4)
    timing = ended.finish.timing
    assert timing is not None
    assert ended.first_token_s == timing.queued_s + timing.prefill_s > 0
    assert ended.duration_s == ended.first_token_s + timing.decode_s


async def test_number_of_events_does_not_depend_on_that_of_tokens(router: Router, told: list[Event]) -> None:
    for length in (1, 30):
        stream = router.submit(make_request(str(length), max_tokens=length))
        assert sum([len(delta.tokens) async for delta in stream]) == length
        stream.close()
    assert [type(event) for event in told[1:]] == [RequestBegan, RequestEnded] * 2


async def test_client_that_goes_away_ends_its_request(told: list[Event]) -> None:
    now, tokens = 0.0, 0
    router = make_router(told, lambda: now)
    await router.start()
    stream = router.submit(make_request("r", max_tokens=40))
    now = 1.0
    async for delta in stream:
        tokens += len(delta.tokens)
        break
    now = 2.0
    stream.close()
    stream.close()
    await router.stop()
    [ended] = [event for event in told if isinstance(event, RequestEnded)]
    assert (ended.finish.reason, ended.finish.output_tokens) == ("aborted", tokens)
    assert ended.finish.message == "the client went away"
    assert ended.first_token_s == 1.0
    assert ended.duration_s == 2.0


async def test_request_that_is_refused_never_began(router: Router, told: list[Event]) -> None:
    with pytest.raises(InvalidRequest):
        router.submit(make_request("long", length=100))
    assert [type(event) for event in told] == [EngineReady]


async def test_engine_that_does_not_start_is_not_ready() -> None:
    told: list[Event] = []

    def fail() -> Stage:
        raise OSError("no memory")

    watch = RequestEvents("toy", told.append)
    router = Router([PipelineEngine(LocalExecutor([fail]), decode)], RoundRobin(), lambda: 64, events=watch)
    with pytest.raises(BackendFailed):
        await router.start()
    assert told == []


@pytest.mark.parametrize(
    ("faults", "reasons"), [((), []), ((Fault("die", at=1),), ["a stage was lost, and is being replaced"])]
)
async def test_stage_that_is_lost_is_told_of_with_the_reason(faults: tuple[Fault, ...], reasons: list[str]) -> None:
    told: list[str] = []
    stages: list[Stage] = [TOY.open(num_pages=40), FaultStage(TOY.open(num_pages=40), *faults)]
    engine = PipelineEngine(LocalExecutor([stages.pop]), decode, None, told.append)
    await engine.start()
    deltas = [delta async for delta in engine.submit(make_request("r"))]
    await engine.stop()
    assert deltas[-1].finish is not None
    assert [reason.partition(":")[0] for reason in told] == reasons
