"""What engines and routers say of themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from parallax_cluster.node.profile.head_service import note_report
from parallax_cluster.wire.profile import DeviceReport, NodeReport
from parallax_core.api import Health, LayerRange, Stage
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.engine import EngineStats
from parallax_core.contracts.status import Described, Drainable, ReplicaStatus
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from parallax_core.node.status import describe_node
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import Toy
from parallax_core.wire.membership import Join
from tests.unit.node.replicas import collect, make_request, make_router

TOY = Toy()
SHARES = [LayerRange(*pair) for pair in pairwise([0, 1, len(TOY.layers)])]


def decode(tokens: Sequence[int]) -> str:
    return "." * len(tokens)


def make_engine() -> PipelineEngine:
    openers = [partial(TOY.open, share, num_pages=40, context=64) for share in SHARES]
    return PipelineEngine(LocalExecutor(openers, backends=["one", "two"]), decode)


async def test_status_of_stages_is_what_they_are_and_did() -> None:
    engine = make_engine()
    router = Router([engine], LeastPendingTokens(), lambda: 64)
    await router.start()
    await collect(router.submit(make_request(num_prompt=4, max_tokens=5)))
    [replica] = router.describe()
    assert (replica.rank, replica.health, replica.num_losses) == (0, Health(state="ready"), 0)
    assert replica.stats.output_tokens == 5
    assert replica.limits == engine.limits
    assert replica.limits is not None
    assert (replica.limits.max_running, replica.limits.max_batch_tokens) == (8, 8)
    assert replica.hop_s is not None
    assert 0 < replica.hop_s < 1
    assert [(each.stage, each.node, each.backend, each.pid) for each in replica.stages] == [
        (0, "stage-0", "one", os.getpid()),
        (1, "stage-1", "two", os.getpid()),
    ]
    for stage, info in zip(replica.stages, engine.infos, strict=True):
        assert (stage.layers, stage.device, stage.dtype) == (info.layers, info.device, info.dtype)
        assert [pool.total for pool in stage.pools] == [pool.num_pages for pool in info.pools]
        assert (stage.steps, stage.tokens, stage.queued, stage.restarts) == (5, 8, 0, 0)
        assert stage.step_time is not None
        assert 0 < stage.step_time.median_s < 1
    await router.stop()


async def test_status_is_there_before_the_stages_are() -> None:
    engine = make_engine()
    [replica] = engine.describe()
    assert replica.health.state == "starting"
    assert replica.limits is None
    assert [(each.layers, each.step_time, each.pools) for each in replica.stages] == [(None, None, ())] * 2
    await engine.stop()


async def test_running_requests_are_told_with_how_far_they_are() -> None:
    engine = make_engine()
    assert engine.describe()[0].running is None
    await engine.start()
    request = make_request(num_prompt=10, max_tokens=20)
    drawn = 0
    async for delta in engine.submit(request):
        drawn += len(delta.tokens)
        for running in engine.describe()[0].running or ():
            assert (running.id, running.prompt_tokens) == (request.id, 10)
            assert running.output_tokens >= drawn > 0
    assert drawn > 1
    assert engine.describe()[0].running == ()
    await engine.stop()


async def test_loss_of_a_stage_is_counted() -> None:
    stages: list[Stage] = [TOY.open(num_pages=40), FaultStage(TOY.open(num_pages=40), Fault("die"))]
    engine = PipelineEngine(LocalExecutor([stages.pop]), decode)
    await engine.start()
    assert (await collect(engine.submit(make_request())))[-1].finish is not None
    [replica] = engine.describe()
    assert (replica.health.state, replica.num_losses) == ("ready", 1)
    await engine.stop()


async def test_router_adds_what_it_knows_to_what_replicas_say() -> None:
    router, engines = await make_router(2)
    assert isinstance(router, Described)
    assert isinstance(router, Drainable)
    router.drain(0)
    router.submit(make_request(num_prompt=10, max_tokens=5))
    first, second = router.describe()
    assert (first.rank, first.is_drained, first.pending_tokens) == (0, True, 0)
    assert second == ReplicaStatus(
        health=Health(state="ready"), rank=1, pending_tokens=15, num_requests=1, stats=EngineStats()
    )
    assert [len(engine.requests) for engine in engines] == [0, 1]
    await router.stop()


class Channel:
    """The name of a node."""

    peer = "mini/7"


def test_status_of_a_node_is_made_once_a_report() -> None:
    node = JoinedNode(Channel(), Join("inprocess://x", (), "mini", 7))  # type: ignore[arg-type]
    assert describe_node(node).profile is None
    for memory in (5, 7):
        note_report(node, NodeReport(backend="mlx", device=DeviceReport(memory=memory, flops=1e12, bandwidth=1e11)))
        status = describe_node(node)
        assert status.profile is not None
        assert status.profile.device.memory == memory
        assert describe_node(node) is status
