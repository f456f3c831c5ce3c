"""Nodes that cannot reach each other are linked over their head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from parallax_core.api import LayerRange, Request, RequestId
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.relay.limits import RelayLimits
from parallax_core.node.relay.server import RelayServer
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.node import BACKEND, name_toy, open_toy_layers
from parallax_core.testing.toy import GREEDY, Toy
from parallax_core.wire.membership import Join
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.zmq_nodes import LOOPBACK, plan_node, started

TOY = Toy(("full", "window", "full"))
UNREACHABLE = "tcp://127.0.0.1:1"
"""Where nothing listens."""


@dataclass
class Cluster:
    relay: RelayServer
    executor: RemoteExecutor
    sessions: list[WorkerSession] = field(default_factory=list)


@asynccontextmanager
async def cluster(num_stages: int = 3) -> AsyncIterator[Cluster]:
    """Run a head that relays, and nodes that it alone can reach since they dial it."""
    async with AsyncExitStack() as stack:
        registry = NodeRegistry(ZmqTransport(plan_node("head", LOOPBACK)), "head")
        relay = registry.relays.server = RelayServer(RelayLimits(), registry.has)
        await registry.start()
        stack.push_async_callback(registry.stop)
        roles = [
            StageAssignment(
                stage=stage,
                layers=LayerRange(stage, stage + 1),
                model=name_toy(TOY),
                heartbeat_s=0.05,
                node=f"n{stage}",
            )
            for stage in range(num_stages)
        ]
        made = Cluster(relay, RemoteExecutor(roles, NodeSupply(registry)))
        for stage in range(num_stages):
            transport = await stack.enter_async_context(started(plan_node(f"n{stage}", LOOPBACK)))
            session = WorkerSession(transport, f"n{stage}", open_toy_layers)
            made.sessions.append(session)
            serving = asyncio.create_task(
                session.serve(registry.address, "head", Join(UNREACHABLE, (BACKEND,), "here", 0))
            )
            stack.push_async_callback(end, serving, session)
        yield made


async def end(serving: asyncio.Task[None], session: WorkerSession) -> None:
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await session.close()


async def test_stages_that_cannot_reach_each_other_equal_the_whole() -> None:
    async with cluster() as made, asyncio.timeout(20):
        engine = PipelineEngine(made.executor, lambda tokens: "x" * len(tokens), None)
        await engine.start()
        request = Request(id=RequestId("1"), prompt=(1, 2, 3), max_tokens=20, sampling=GREEDY)
        tokens = [token async for delta in engine.submit(request) for token in delta.tokens]
        assert made.relay.num_streams == 2
        await engine.stop()
        assert tokens == TOY.continuation((1, 2, 3), 20)
