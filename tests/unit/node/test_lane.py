import threading
from functools import partial

import pytest

from parallax_core.node.lane import Lane


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
