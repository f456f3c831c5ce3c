from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.node.relay.limits import BURST_S, DAY_S, Quotas, Throttle, make_pair

PAIR = make_pair("a", "b")


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 2)), min_size=1, max_size=40))
def test_rate_is_kept_over_any_time(asked: list[tuple[int, float]]) -> None:
    rate, now, forwarded = Throttle(1_000_000), 0.0, list[tuple[float, int]]()
    for size, pause_s in asked:
        now += pause_s
        forwarded.append((now + rate.reserve(size, now), size))
    times = [time for time, _ in forwarded]
    assert times == sorted(times), "in the order of asking"
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            between = sum(size for _, size in forwarded[first:last])
            assert between <= 1e6 * (times[last] - begin + BURST_S) + 1


async def test_streams_take_turns_also_where_none_has_to_wait() -> None:
    rate, turns = Throttle(1e12), list[int]()

    async def forward(stream: int) -> None:
        for _ in range(10):
            await rate.wait(10_000)
            turns.append(stream)

    await asyncio.gather(forward(0), forward(1))
    assert turns == [0, 1] * 10


async def test_stream_that_ends_while_it_waits_uses_up_nothing() -> None:
    rate = Throttle(1)
    await rate.wait(1)
    waiting = [asyncio.create_task(rate.wait(10**6)) for _ in range(10)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert rate.reserve(1, asyncio.get_running_loop().time()) < 10


async def test_no_rate_never_waits() -> None:
    rate = Throttle(0)
    async with asyncio.timeout(1):
        for _ in range(1000):
            await rate.wait(10**9)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 10**6), st.floats(0, DAY_S / 2)), max_size=40))
def test_pair_has_room_until_its_bytes_of_a_day_are_used(uses: list[tuple[int, int, float]]) -> None:
    clock = Clock()
    quotas, begun, used = Quotas(10**6, clock), dict[int, float](), dict[int, int]()
    for other, size, pause_s in uses:
        pair = make_pair("hub", f"node {other}")
        if other in begun and clock.now - begun[other] >= DAY_S:
            del begun[other], used[other]
        assert quotas.has_room(pair) == (used.get(other, 0) < 10**6)
        if quotas.has_room(pair):
            quotas.add(pair, size)
            begun.setdefault(other, clock.now)
            used[other] = used.get(other, 0) + size
        clock.now += pause_s


def test_pair_is_the_same_whichever_machine_calls() -> None:
    clock = Clock()
    quotas = Quotas(10, clock)
    quotas.add(make_pair("a", "b"), 10)
    assert not quotas.has_room(make_pair("b", "a"))
    assert quotas.has_room(make_pair("a", "c"))
    clock.now += DAY_S
    assert quotas.has_room(PAIR)


def test_no_quota_is_never_used_up() -> None:
    quotas = Quotas(0, Clock())
    quotas.add(PAIR, 10**12)
    assert quotas.has_room(PAIR)
