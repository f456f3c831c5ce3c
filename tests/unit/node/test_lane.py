import asyncio
import contextlib
import gc
import threading
import weakref
from functools import partial

import pytest

from parallax_core.node.lane import Lane
from tests.unit.node.cluster import until


async def test_lane_runs_all_calls_in_order_on_one_other_thread() -> None:
    lane = Lane("test")
    seen: list[int] = []

    def note(number: int) -> int:
        seen.append(number)
        return threading.get_ident()

    futures = [lane.call(partial(note, number)) for number in range(5)]
    threads = {await future for future in futures}
    lane.close()
    assert seen == list(range(5))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_lane_raises_where_the_call_is_awaited() -> None:
    lane = Lane("test")
    with pytest.raises(ZeroDivisionError):
        await lane.call(lambda: 1 // 0)
    assert await lane.call(lambda: "still there") == "still there"
    lane.close()


async def test_lane_goes_on_when_nobody_waits_any_more() -> None:
    lane = Lane("test")
    go = threading.Event()
    lane.call(go.wait).cancel()
    go.set()
    assert await lane.call(lambda: 1) == 1
    lane.close()


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

    lane = Lane("test")
    gc.disable()
    try:
        with contextlib.suppress(MemoryError):
            await lane.call(partial(load, fails=True))
        await lane.call(partial(load, fails=False))
        await until(lambda: [ref() for ref in made] == [None, None])
    finally:
        gc.enable()
        lane.close()


async def test_lane_says_where_it_hangs() -> None:
    lane, go, here = Lane("test"), threading.Event(), threading.Event()

    def hang() -> None:
        here.set()
        go.wait()

    hanging = lane.call(hang)
    await asyncio.to_thread(here.wait)
    assert "go.wait()" in lane.find_place()
    go.set()
    await hanging
    lane.close()
    await until(lambda: lane.find_place() == "")
