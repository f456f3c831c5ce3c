from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from parallax_core.api import (
    BackendFailed,
    LayerRange,
    ParallaxError,
    Sampling,
    Stage,
    StageBatch,
    Unavailable,
)
from parallax_core.engine.limits import Limits
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import GREEDY, SizeOptions, Toy, ToyStage
from tests.unit.node.pipeline.local import (
    PATIENCE_S,
    TOY,
    collect,
    decode,
    end_of,
    make_request,
    make_stages,
    openers,
    running,
    tokens_of,
)


@pytest.fixture
def threads() -> Callable[[], set[threading.Thread]]:
    """Return what tells which lanes have come since the test began."""
    before = set(threading.enumerate())
    return lambda: {thread for thread in threading.enumerate() if "parallax" in thread.name} - before


async def none_left(threads: Callable[[], set[threading.Thread]]) -> None:
    for thread in threads():
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert threads() == set()


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 5])
async def test_split_equals_whole(num_stages: int) -> None:
    prompts = [[number] * (1 + 5 * (number % 4)) for number in range(20)]
    samplings = [GREEDY if number % 2 else Sampling(seed=number) for number in range(20)]
    stages = make_stages(num_stages)
    async with running(stages) as engine:
        requests = [make_request(prompt, 6, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]
        answers = await asyncio.gather(*(collect(engine.submit(request)) for request in requests))
    assert [tokens_of(answer) for answer in answers] == [
        TOY.continuation(prompt, 6, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    assert {end_of(answer)[0] for answer in answers} == {"length"}
    assert all(stage.closed for stage in stages)
    assert [info.layers for info in engine.infos] == [stage.info.layers for stage in stages]


async def test_split_equals_whole_when_memory_is_short() -> None:
    prompts = [[number] * 9 for number in range(12)]
    async with running(make_stages(3, num_pages=9)) as engine:
        answers = await asyncio.gather(*(collect(engine.submit(make_request(prompt, 12))) for prompt in prompts))
    assert [tokens_of(answer) for answer in answers] == [TOY.continuation(prompt, 12) for prompt in prompts]


@pytest.mark.parametrize("num_stages", [1, 2])
async def test_as_many_run_as_the_stages_are_good_for(num_stages: int) -> None:
    """256 at once, in frames as they cross between nodes, with the tokens that each has alone."""
    toy, most = Toy(("full", "full")), 256
    cuts = pairwise(range(0, 3, 2 // num_stages))
    sizes: SizeOptions = {"num_pages": 16 * most, "max_batch_tokens": 2 * most // num_stages}
    stages = [toy.open(LayerRange(*cut), **sizes) for cut in cuts]
    samplings = [GREEDY if number % 2 else Sampling(seed=number) for number in range(most)]
    async with running(stages) as engine:
        streams = [engine.submit(make_request([number % 90, 5], 12, samplings[number])) for number in range(most)]
        answers = await asyncio.gather(*(collect(stream) for stream in streams))
        limits = engine.limits
    assert limits is not None
    assert (limits.max_running, limits.max_waiting) == (most, 2 * most)
    assert max(len(batch.rows) for batch in stages[0].batches) == most // num_stages
    assert [tokens_of(answer) for answer in answers] == [
        toy.continuation([number % 90, 5], 12, samplings[number]) for number in range(most)
    ]


async def test_stages_compute_different_steps_at_the_same_time() -> None:
    stages = make_stages(3)
    meeting = threading.Barrier(3)
    met: list[int] = []

    def meet(number: int, batch: StageBatch) -> None:
        if batch.step == 3 - number:
            meeting.wait(PATIENCE_S)
            met.append(batch.step)

    for number, stage in enumerate(stages):
        stage.before_step = partial(meet, number)
    prompt = list(range(50))
    async with running(stages) as engine:
        answer = await collect(engine.submit(make_request(prompt)))
    assert sorted(met) == [1, 2, 3]
    assert tokens_of(answer) == TOY.continuation(prompt, 4)


async def test_plan_reaches_the_head() -> None:
    stages = make_stages(2)
    async with running(stages, PipelineOptions(limits=Limits(max_running=1))) as engine:
        await asyncio.gather(*(collect(engine.submit(make_request([number, 1]))) for number in range(4)))
    assert max(len(batch.rows) for batch in stages[0].batches) == 1


async def test_engine_drops_a_closed_stream_and_serves_the_others() -> None:
    stages = make_stages(3)
    async with running(stages) as engine:
        closed = engine.submit(make_request([1], max_tokens=50))
        other = engine.submit(make_request([2], max_tokens=50))
        async for _ in closed:
            closed.close()
            break
        assert tokens_of(await collect(other)) == TOY.continuation([2], 50)
        assert tokens_of(await collect(engine.submit(make_request([3])))) == TOY.continuation([3], 4)
        closed.close()
        assert engine.health().state == "ready"
    assert sum(len(row.tokens) for batch in stages[0].batches for row in batch.rows) < 100


async def test_stream_that_is_closed_while_its_step_is_in_flight_leaves_no_trace() -> None:
    stages = make_stages(3)
    hanging = FaultStage(stages[1], Fault("hang", at=0))
    async with running([stages[0], hanging, stages[2]]) as engine:
        stream = engine.submit(make_request([1, 2, 3], max_tokens=50))
        await asyncio.to_thread(hanging.hanging.wait, PATIENCE_S)
        stream.close()
        hanging.release()
        assert tokens_of(await collect(engine.submit(make_request([7])))) == TOY.continuation([7], 4)


async def test_stage_that_takes_steps_ahead_gives_the_tokens_of_the_model() -> None:
    prompts = [[number] * length for number, length in ((3, 30), (4, 1), (5, 17))]
    async with running([TOY.open(num_pages=40, steps_ahead=1)]) as engine:
        answers = await asyncio.gather(*[collect(engine.submit(make_request(prompt, 6))) for prompt in prompts])
    assert [tokens_of(answer) for answer in answers] == [TOY.continuation(prompt, 6) for prompt in prompts]


@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_failed_step_ends_its_requests_with_an_error_and_no_others(bad: int) -> None:
    stages = make_stages(3)

    def fail(batch: StageBatch) -> None:
        if any(row.start == 0 and row.tokens[0] == 13 for row in batch.rows):
            message = "unlucky"
            raise OSError(message)

    stages[bad].before_step = fail
    async with running(stages) as engine:
        others = [engine.submit(make_request([number], 30)) for number in range(1, 6)]
        async for _ in others[0]:
            break
        [delta] = await collect(engine.submit(make_request([13])))
        assert end_of([delta]) == ("error", "the model failed on this step: OSError: unlucky")
        answers = [await collect(stream) for stream in others]
        assert engine.health().state == "ready"
        assert tokens_of(await collect(engine.submit(make_request([3], 2)))) == TOY.continuation([3], 2)
    unlucky = [number for number, answer in enumerate(answers, 1) if end_of(answer)[0] == "error"]
    for number, answer in enumerate(answers, 1):
        expected = TOY.continuation([number], 30)
        taken = 1 if number == 1 else 0  # read before
        if number not in unlucky:
            assert tokens_of(answer) == expected[taken:]
    assert len(unlucky) <= 3  # those in the same step as the one that failed


@pytest.mark.parametrize("num_stages", [1, 3])
async def test_stop_ends_every_stream_even_while_a_step_hangs(
    num_stages: int, threads: Callable[[], set[threading.Thread]]
) -> None:
    stages: list[Stage] = list(make_stages(num_stages))
    stages[-1] = hanging = FaultStage(stages[-1], Fault("hang", at=1))
    engine = PipelineEngine(LocalExecutor(openers(stages)), decode)
    await engine.start()
    streams = [engine.submit(make_request([number], 40)) for number in range(4)]
    await asyncio.to_thread(hanging.hanging.wait, PATIENCE_S)
    await asyncio.wait_for(asyncio.gather(engine.stop(), engine.stop()), timeout=3)
    assert {end_of(await collect(stream))[0] for stream in streams} == {"aborted"}
    await engine.stop()
    hanging.release()
    await none_left(threads)


async def test_engine_takes_nothing_before_it_is_ready_or_after_it_stopped() -> None:
    engine = PipelineEngine(LocalExecutor([TOY.open]), decode)
    with pytest.raises(Unavailable, match="starting"):
        engine.submit(make_request([1]))
    await engine.start()
    with pytest.raises(Unavailable, match="cannot start: it is ready"):
        await engine.start()
    await engine.stop()
    with pytest.raises(Unavailable, match="draining"):
        engine.submit(make_request([1]))
    with pytest.raises(Unavailable, match="cannot start: it is draining"):
        await engine.start()


async def test_stages_open_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def open_stage(stage: Stage) -> Stage:
        meeting.wait(PATIENCE_S)
        return stage

    engine = PipelineEngine(LocalExecutor([partial(open_stage, stage) for stage in make_stages(3)]), decode)
    await engine.start()
    assert engine.health().state == "ready"
    await engine.stop()


async def test_engine_that_cannot_open_a_stage_says_why_and_closes_the_others(
    threads: Callable[[], set[threading.Thread]],
) -> None:
    def fail() -> Stage:
        message = "no such model"
        raise ParallaxError(message, "name another")

    stages = make_stages(3)
    engine = PipelineEngine(LocalExecutor([*openers(stages[:2]), fail]), decode)
    with pytest.raises(ParallaxError, match="no such model"):
        await engine.start()
    assert engine.health().state == "failed"
    assert [stage.closed for stage in stages] == [True, True, False]
    await engine.stop()
    await none_left(threads)


async def test_stages_that_do_not_fit_are_refused_and_closed(threads: Callable[[], set[threading.Thread]]) -> None:
    stages = make_stages(3)
    engine = PipelineEngine(LocalExecutor(openers([stages[0], stages[2]])), decode)
    with pytest.raises(ParallaxError, match=r"stage 0 \(toy\) and stage 1 \(toy\) do not follow each other"):
        await engine.start()
    assert (stages[0].closed, stages[2].closed) == (True, True)
    await none_left(threads)


async def test_engine_hides_no_bug_of_a_backend() -> None:
    def open_stage() -> Stage:
        stages: dict[str, Stage] = {}
        return stages["stage"]

    with pytest.raises(BackendFailed, match="KeyError: 'stage'"):
        await PipelineEngine(LocalExecutor([open_stage]), decode).start()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_start_that_is_stopped_closes_the_stage_it_opens(
    is_cancelled: bool, threads: Callable[[], set[threading.Thread]]
) -> None:
    first, last = make_stages(2)
    release = threading.Event()

    def open_slowly() -> Stage:
        release.wait(PATIENCE_S)
        return last

    engine = PipelineEngine(LocalExecutor([lambda: first, open_slowly]), decode)
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0.05)
    if is_cancelled:
        starting.cancel()
    await engine.stop()
    with pytest.raises(asyncio.CancelledError if is_cancelled else Unavailable):
        await starting
    assert first.closed
    release.set()
    await none_left(threads)
    assert last.closed


async def test_stage_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(ToyStage):
        def close(self) -> None:
            message = "stuck"
            raise OSError(message)

    with caplog.at_level(logging.WARNING):
        async with running([Stuck(TOY)]) as engine:
            assert tokens_of(await collect(engine.submit(make_request([3])))) == TOY.continuation([3], 4)
    assert "not closed cleanly: OSError: stuck" in caplog.text
