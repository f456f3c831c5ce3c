import asyncio
import contextlib
import gc
import threading
import weakref
from functools import partial

import pytest

from parallax_core.node.worker.thread import StageThread
from tests.unit.node.cluster import until


async def test_lane_runs_all_calls_in_order_on_one_other_thread() -> None:
    stage_thread = StageThread("test")
    seen: list[int] = []

    def note(number: int) -> int:
        seen.append(number)
        return threading.get_ident()

    futures = [stage_thread.call(partial(note, number)) for number in range(5)]
    threads = {await future for future in futures}
    stage_thread.close()
    assert seen == list(range(5))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_lane_raises_where_the_call_is_awaited() -> None:
    stage_thread = StageThread("test")
    with pytest.raises(ZeroDivisionError):
        await stage_thread.call(lambda: 1 // 0)
    assert await stage_thread.call(lambda: "still there") == "still there"
    stage_thread.close()


async def test_lane_goes_on_when_nobody_waits_any_more() -> None:
    stage_thread = StageThread("test")
    go = threading.Event()
    stage_thread.call(go.wait).cancel()
    go.set()
    assert await stage_thread.call(lambda: 1) == 1
    stage_thread.close()


async def test_lane_keeps_nothing_of_a_call_that_is_over() -> None:
    class Weights:
        """Stands for gigabytes."""

    made: list[weakref.ref[Weights]] = []

    def load(*, fails: bool) -> Weights:
        weights = Weights()
        made.append(weakref.ref(weights))
        if fails:
            raise MemoryError
        return weights

    stage_thread = StageThread("test")
    gc.disable()
    try:
        with contextlib.suppress(MemoryError):
            await stage_thread.call(partial(load, fails=True))
        await stage_thread.call(partial(load, fails=False))
        await until(lambda: [ref() for ref in made] == [None, None])
    finally:
        gc.enable()
        stage_thread.close()


async def test_lane_says_where_it_hangs() -> None:
    stage_thread, go, here = StageThread("test"), threading.Event(), threading.Event()

    def hang() -> None:
        here.set()
        go.wait()

    hanging = stage_thread.call(hang)
    await asyncio.to_thread(here.wait)
    assert "go.wait()" in stage_thread.find_place()
    stage_thread.close()
    assert stage_thread.is_alive
    go.set()
    await hanging
    await until(lambda: stage_thread.find_place() == "")
    assert not stage_thread.is_alive
