"""Runs sleeping stages, each in its own process, behind a head; used by `benchmarks.hop` and `benchmarks.hosts`.

``python -m benchmarks.fleet`` runs one of the worker processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from parallax_core.api import LayerRange, PeerLost, PoolInfo, Stage, TensorSpec, Transport, TransportPlan
from parallax_core.contracts.progress import Progress
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.wire.membership import Assign, Join
from parallax_transport_lattica.transport import LatticaTransport
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport

HEAD = "head"
TIMEOUT_S = 10.0
MODEL = "sleep"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """The stages, and how they reach each other."""

    seconds: tuple[float, ...]
    """Seconds that a step takes on each stage."""
    road: str = "ipc"
    """``ipc``, or ``tcp``, which is encrypted, or ``lattica``, which is that through a tunnel."""
    width: int = 576
    """Width of the hidden states, which are float32."""
    max_batch_tokens: int = 256
    reach: dict[str, str] = field(default_factory=dict)
    """The addresses at which others reach nodes, by node name, where they differ from the listening addresses."""
    near: frozenset[str] = frozenset()
    """Nodes that connect to the listening address of the head instead of the one in ``reach``."""
    places: dict[str, str] = field(default_factory=dict)
    """Fixed listening addresses, by node name."""


@asynccontextmanager
async def fleet(plan: FleetPlan, folder: Path) -> AsyncIterator[RemoteExecutor]:
    """Prepare the stages, and yield their executor, not yet open; ``folder`` holds keys and sockets."""
    environment = {**os.environ, "PARALLAX_HOME": str(folder)}
    os.environ["PARALLAX_HOME"] = str(folder)
    registry = NodeRegistry(
        make_transport(TransportPlan(node=HEAD, listen=place(plan, folder, HEAD), timeout_s=TIMEOUT_S)), HEAD
    )
    await registry.start()

    def command(node: str) -> Sequence[str]:
        stage = int(node.rpartition("-")[2])
        words = {
            "--node": node,
            "--connect": registry.address if node in plan.near else plan.reach.get(HEAD, registry.address),
            "--listen": place(plan, folder, node),
            "--reach": plan.reach.get(node, ""),
            "--seconds": plan.seconds[stage],
            "--width": plan.width,
            "--tokens": plan.max_batch_tokens,
            "--stages": len(plan.seconds),
        }
        return [sys.executable, "-m", "benchmarks.fleet", *(str(word) for pair in words.items() for word in pair)]

    os.environ.update(environment)
    roles = [
        StageAssignment(stage=index, layers=LayerRange(index, index + 1), model=MODEL, node=f"stage-{index}")
        for index in range(len(plan.seconds))
    ]
    executor = RemoteExecutor(roles, NodeSupply(registry, WorkerSupervisor(command)))
    try:
        yield executor
    finally:
        await executor.close()
        await registry.stop()


def place(plan: FleetPlan, folder: Path, node: str) -> str:
    """Return the listening address of a node."""
    if node in plan.places:
        return plan.places[node]
    return place_local(folder, node) if plan.road == "ipc" else f"{plan.road}://127.0.0.1:0"


def make_transport(plan: TransportPlan) -> Transport:
    """Return the transport of the address at which a node listens."""
    return (LatticaTransport if plan.listen.startswith("lattica:") else ZmqTransport)(plan)


def make_opener(num_stages: int, seconds: float, spec: TensorSpec, max_batch_tokens: int) -> Callable[..., Stage]:
    """Return a function that opens a sleeping stage with one of ``num_stages`` layers."""

    def open_stage(assign: Assign, progress: Progress) -> Stage:
        del progress
        info = describe_sleeper(LayerRange(assign.start, assign.stop), num_stages)
        takes, gives = ((spec,) if tensors else () for tensors in (info.takes, info.gives))
        pools = (PoolInfo(kind="full", page_size=16, num_pages=100_000),)
        info = dataclasses.replace(info, takes=takes, gives=gives, pools=pools, max_batch_tokens=max_batch_tokens)
        return SleepStage(info, lambda _: seconds)

    return open_stage


async def serve(given: argparse.Namespace, num_stages: int) -> None:
    """Run a node until the head is gone."""
    plan = TransportPlan(node=given.node, listen=given.listen, timeout_s=TIMEOUT_S)
    transport = make_transport(plan)
    await transport.start()
    opener = make_opener(num_stages, given.seconds, TensorSpec(given.width, "float32"), given.tokens)
    member = WorkerSession(transport, given.node, opener)
    join = Join(given.reach or transport.address, ("sleep",), "here", os.getpid())
    with contextlib.suppress(PeerLost):
        await member.serve(given.connect, HEAD, join)
    await member.close()
    await transport.stop()


def main() -> None:
    """Run a node."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--node", "--connect", "--listen", "--reach"):
        parser.add_argument(name, default="")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--stages", type=int, default=3)
    given = parser.parse_args()
    asyncio.run(serve(given, given.stages))


if __name__ == "__main__":
    main()
