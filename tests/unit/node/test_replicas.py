"""Several replicas behind one router: draining, losses and accounts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

import pytest

from parallax_core.api import (
    Engine,
    LayerRange,
    Reason,
    Request,
    RoutingPolicy,
)
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from parallax_core.testing.toy import Toy
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import PrefixAffinity, RoundRobin
from tests.unit.node.replicas import CONTEXT, collect, make_request, pending, requests

TOY = Toy()


def make_engine() -> Engine:
    def decode(tokens: Sequence[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)

    halves = (LayerRange(0, 1), LayerRange(1, 2))
    return PipelineEngine(
        LocalExecutor([partial(TOY.open, half, num_pages=40, context=CONTEXT) for half in halves]), decode
    )


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


POLICIES: list[RoutingPolicy] = [
    LeastPendingTokens(),
    RoundRobin(),
    PrefixAffinity(slack_tokens=10),
    LeastFinishTime(choices=2),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_account_is_never_below_nothing_and_ends_at_nothing(policy: RoutingPolicy) -> None:
    engines = [make_engine() for _ in range(3)]
    router = Router(engines, policy, lambda: CONTEXT)
    crowd = Crowd(router, seed=4)
    await router.start()
    try:
        coming = asyncio.gather(*(crowd.come(str(number % 3)) for number in range(60)))
        late = await stop_later(engines[1])
        await asyncio.wait_for(coming, 60)
        assert router.health().state == "ready"
    finally:
        await router.stop()
    assert (pending(router), requests(router)) == ([0] * 3, [0] * 3)
    assert late == []
    assert set(crowd.reasons) <= {"length", "aborted"}
    assert crowd.reasons.count("length") > 10


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
