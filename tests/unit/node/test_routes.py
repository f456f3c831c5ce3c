"""Which replica a policy chooses, and what the router does with a bad choice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallax_core.api import (
    ArrivalView,
    ReplicaView,
    Unavailable,
    UnknownName,
)
from parallax_core.cluster.routing.prefix_index import BLOCK
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import PrefixAffinity, RoundRobin
from tests.unit.node.replicas import collect, end, make_request, make_router, requests


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
    engines[0].submit_error = engines[2].submit_error = Unavailable("not now", retry_after_s=5)
    with pytest.raises(Unavailable, match="not now") as caught:  # the one that has just refused is asked last
        router.submit(make_request())
    assert caught.value.retry_after_s == 5
    assert requests(router) == [1, 0, 1]


async def test_replica_that_refused_is_avoided_by_a_policy_that_knows_it() -> None:
    router, engines = await make_router(2, LeastFinishTime())
    engines[0].submit_error = Unavailable("too many requests wait")
    router.submit(make_request(10))
    engines[0].submit_error = None
    router.submit(make_request(10))
    assert [len(engine.requests) for engine in engines] == [0, 2]


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
    assert router.describe()[0].num_requests == 0
    assert router.describe()[0].is_drained
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
