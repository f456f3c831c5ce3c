"""Emulates a cluster of unequal nodes: processes whose stages sleep as a profile says, behind links with delays.

``python -m benchmarks.emulated PLAN`` runs one node; PLAN is an `EmulatedNode` as JSON. A stage sleeps for the time of
the roofline of its own rows: the FLOPs and bytes of the very tokens of a step, where the cost model has means.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import msgspec

from parallax_core.api import (
    DeviceProfile,
    LayerRange,
    ModelDemand,
    PeerLost,
    PlacedStage,
    PoolInfo,
    Stage,
    StageBatch,
    TensorSpec,
    Transport,
    TransportPlan,
)
from parallax_core.contracts.progress import Progress
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.wire.membership import Assign, Join
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.node_services import equip, make_services
from tests.support.paced_node import time_batch
from tests.support.zmq_nodes import find_tcp_port

HEAD = "head"
TIMEOUT_S = 30.0
MAX_BATCH_TOKENS = 2048
FLOAT_BYTES = 4
PIECE_BYTES = 2**14


class Wire(NamedTuple):
    """A direction of a link."""

    delay_s: float
    bandwidth: float
    """Bytes per second."""


@asynccontextmanager
async def pass_slowly(port: int, there: Wire, back: Wire) -> AsyncIterator[int]:
    """Forward connections to ``port`` of this machine, each way as slowly as its wire; yield the port to connect to."""
    tasks: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for one, other, wire in ((reader, far_writer, there), (far_reader, writer, back)):
            tasks.add(asyncio.create_task(_forward(one, other, wire)))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
    """Forward data in order: each piece is sent for its size over the bandwidth, and arrives a delay later."""
    loop, sent = asyncio.get_running_loop(), 0.0
    pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await pending.get()
            await asyncio.sleep(due - loop.time())
            writer.write(data)
            if not data:
                writer.close()
                return
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE_BYTES):
            sent = max(sent, loop.time()) + len(data) / wire.bandwidth
            pending.put_nowait((sent + wire.delay_s, data))
    pending.put_nowait((max(sent, loop.time()) + wire.delay_s, b""))
    with contextlib.suppress(ConnectionError):
        await delivering


class EmulatedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a process, from its command line."""

    node: str
    connect: str
    listen: str
    reach: str
    device: DeviceProfile
    model: ModelDemand


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedPipeline:
    """A pipeline of a placement, and the wires of its hops."""

    stages: tuple[PlacedStage, ...]
    devices: tuple[DeviceProfile, ...]
    hops: tuple[Wire, ...]
    """From each stage to the next."""
    back: Wire
    """From the last stage to the head, which is beside the first."""
    model: ModelDemand


@asynccontextmanager
async def run_pipeline(plan: EmulatedPipeline) -> AsyncIterator[PipelineEngine]:
    """Start the processes of a pipeline, and yield the engine over them; keys are in ``PARALLAX_HOME``."""
    async with AsyncExitStack() as stack:
        ports = [find_tcp_port() for _ in plan.stages]
        head = equip(
            NodeRegistry(ZmqTransport(TransportPlan(node=HEAD, listen="tcp://127.0.0.1:0", timeout_s=TIMEOUT_S)), HEAD)
        )
        await head.start()
        stack.push_async_callback(head.stop)
        head_port = int(head.address.rpartition(":")[2])
        none = Wire(0.0, 1e12)
        last = len(plan.stages) - 1
        inward = [
            await stack.enter_async_context(pass_slowly(port, hop, hop))
            for port, hop in zip(ports[1:], plan.hops, strict=True)
        ]
        home = await stack.enter_async_context(pass_slowly(head_port, plan.back if last else none, none))
        commands = {}
        for rank in range(len(plan.stages)):
            reach = ports[rank] if rank == 0 else inward[rank - 1]
            node = EmulatedNode(
                node=f"stage-{rank}",
                connect=f"tcp://127.0.0.1:{home}" if rank == last and last else head.address,
                listen=f"tcp://127.0.0.1:{ports[rank]}",
                reach=f"tcp://127.0.0.1:{reach}",
                device=plan.devices[rank],
                model=plan.model,
            )
            commands[node.node] = [sys.executable, "-m", "benchmarks.emulated", msgspec.json.encode(node).decode()]
        roles = [
            StageAssignment(stage=rank, layers=placed.layers, model="sleep", node=f"stage-{rank}")
            for rank, placed in enumerate(plan.stages)
        ]
        executor = RemoteExecutor(roles, NodeSupply(head, WorkerSupervisor(commands.__getitem__)))
        stack.push_async_callback(executor.close)
        engine = PipelineEngine(executor, lambda tokens: " word" * len(tokens))
        await engine.start()
        stack.push_async_callback(engine.stop)
        yield engine


def open_sleeper(assign: Assign, num_layers: int, width: int, time_step: Callable[[StageBatch], float]) -> Stage:
    """Return a stage that sleeps as long as ``time_step`` says, and hands on float32 of ``width`` for each token."""
    info, spec = describe_sleeper(LayerRange(assign.start, assign.stop), num_layers), TensorSpec(width, "float32")
    takes, gives = ((spec,) if tensors else () for tensors in (info.takes, info.gives))
    pools = (PoolInfo(kind="full", page_size=16, num_pages=100_000),)
    info = dataclasses.replace(info, takes=takes, gives=gives, pools=pools, max_batch_tokens=MAX_BATCH_TOKENS)
    return SleepStage(info, time_step)


async def run_node(transport: Transport, member: WorkerSession, connect: str, reach: str = "") -> None:
    """Run a node of sleepers until its head ends it; ``reach``: its address for others, by default its own."""
    await transport.start()
    with contextlib.suppress(PeerLost):
        await member.serve(connect, HEAD, Join(reach or transport.address, ("sleep",), "here", os.getpid()))
    await member.close()
    await transport.stop()


async def serve(plan: EmulatedNode) -> None:
    def open_stage(assign: Assign, _: Progress) -> Stage:
        held = plan.model.layers[assign.start : assign.stop]
        width = plan.model.hidden // FLOAT_BYTES
        return open_sleeper(assign, len(plan.model.layers), width, lambda batch: time_batch(plan.device, held, batch))

    transport = ZmqTransport(TransportPlan(node=plan.node, listen=plan.listen, timeout_s=TIMEOUT_S))
    member = WorkerSession(make_services(transport, plan.node), plan.node, open_stage)
    await run_node(transport, member, plan.connect, plan.reach)


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=EmulatedNode)))
