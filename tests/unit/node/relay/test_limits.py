from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.node.relay.limits import DAY_S, Quotas, Throttle, make_pair

PAIR = make_pair("a", "b")


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_rate_is_kept_by_all_streams_together() -> None:
    rate, forwarded = Throttle(1_000_000), [0, 0]

    async def forward(stream: int) -> None:
        while True:
            await rate.wait(10_000)
            forwarded[stream] += 10_000

    begun = time.monotonic()
    tasks = [asyncio.create_task(forward(stream)) for stream in range(2)]
    await asyncio.sleep(0.5)
    took_s = time.monotonic() - begun
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 0.3 * 1e6 < sum(forwarded) < 1e6 * (took_s + 0.05) + 20_000
    assert abs(forwarded[0] - forwarded[1]) <= 20_000, "the streams take turns"


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


def test_no_quota_keeps_no_account() -> None:
    quotas = Quotas(0, Clock())
    quotas.add(PAIR, 10**12)
    assert quotas.has_room(PAIR)
    assert not quotas._used
