"""Has nodes join, leave, die and stall at random while clients send requests, under a coordinator.

    python -m benchmarks.membership_churn --out benchmarks/results/membership-churn.json

Nodes are worker processes that run a toy model of three layers. Each has room for one to four layers, and a speed of
its own, as the coordinator is told; it plans pipelines over those that are there. Sixty times, after a pause of up to
two seconds, a node joins, leaves (SIGTERM), is killed (SIGKILL), or stands still for three seconds (SIGSTOP), longer
than its links bear. There are always enough nodes for the model, but between two plans requests may have to wait, and
new ones may be refused.

Every request must end with the tokens of the toy computed alone. In the end every pipeline of the last plan must serve,
and no process may be left over. ``pause_s`` is the longest wait of each request for a token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.crowd import TOY, ClientPool, finish_clients, now
from benchmarks.processes import is_running
from benchmarks.record import describe_run, write_report
from parallax_core.api import TransportPlan
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.cluster.layer_plan import LayerPlanner
from parallax_core.cluster.placement.policy import SearchPlacement
from parallax_core.contracts.placement import (
    ClusterProfile,
    DeviceProfile,
    LayerDemand,
    ModelDemand,
    NodeProfile,
    PlacedStage,
    ServingGoal,
)
from parallax_core.node.coordinator.coordinator import Coordinator, PlannedPipeline, UsableNodes
from parallax_core.node.coordinator.planned import PlannedExecutor, Planning
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import JoinedNode, NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.testing.node import name_toy
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport

GB = 10**9
TIMEOUT_S = 1.0
STALL_S = 3.0
CLIENTS = 6
FIRST, MOST = 4, 8
"""The nodes at the beginning, and the most at a time."""
LEAST_ROOM = 5
"""The layers for which the nodes that stay must have room: more than the model has, since a node may stand still."""
CONVERGE_S = 60.0
KINDS = ("join", "leave", "kill", "stall")


def make_model() -> ModelDemand:
    """Return the toy as the planner sees it: three layers of a gigabyte."""
    layer = LayerDemand(weights=GB, read=GB, flops=GB, kv=4096)
    return ModelDemand(layers=(layer,) * len(TOY.layers), hidden=8192)


class Fleet:
    """The worker processes, and what is told of them."""

    def __init__(self, folder: Path, registry: NodeRegistry, rng: random.Random) -> None:
        self._folder = folder
        self._registry = registry
        self._random = rng
        self.supervisor = WorkerSupervisor(self._make_command)
        self.profiles: dict[str, NodeProfile] = {}
        self.pids: dict[str, int] = {}
        """The processes that were started and not told to end."""
        self.all_pids: set[int] = set()

    def _make_command(self, node: str) -> list[str]:
        plan = {
            "node": node,
            "transport": "parallax_transport_zmq.transport:ZmqTransport",
            "connect": self._registry.address,
            "listen": place_local(self._folder, node),
            "timeout_s": TIMEOUT_S,
        }
        return [sys.executable, "-m", "parallax_core.testing.node", json.dumps(plan)]

    async def join(self) -> str:
        """Start a node with a room and a speed drawn at random."""
        node = f"node/{len(self.profiles)}"
        room, power = self._random.choice((1.5, 2.5, 4.0)), 10 ** self._random.uniform(11, 13)
        device = DeviceProfile(memory=int(room * GB), flops=power, bandwidth=power / 10)
        self.profiles[node] = NodeProfile(name=node, device=device)
        await self.supervisor.restart(node)
        self.pids[node] = pid = self.supervisor.pids[-1]
        self.all_pids.add(pid)
        return node

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profiles of nodes; see `Coordinator`."""
        return UsableNodes(ClusterProfile(nodes=tuple(self.profiles[node.name] for node in nodes)), {})

    def can_spare(self, node: str) -> bool:
        """Return whether the others have room for the model."""
        return sum(int(self.profiles[each].device.memory / GB) for each in self.pids if each != node) >= LEAST_ROOM

    async def strike(self, kind: str) -> str:
        """Have something happen to a node; return what and to which."""
        spare = [node for node in self.pids if self.can_spare(node)]
        if kind == "join" or not spare:
            return f"join {await self.join()}" if len(self.pids) < MOST else "nothing"
        node = self._random.choice(spare)
        pid = self.pids[node]
        if kind == "stall":
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STALL_S)
        with suppress(ProcessLookupError):
            os.kill(pid, {"leave": signal.SIGTERM, "kill": signal.SIGKILL, "stall": signal.SIGCONT}[kind])
        del self.pids[node]  # the toy's process ends also when it has lost its head
        return f"{kind} {node}"


class ChurningCluster:
    """A coordinator over the nodes of a fleet, and its router."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        plan = TransportPlan(node="head", listen=place_local(folder, "head"), timeout_s=TIMEOUT_S)
        self.registry = NodeRegistry(ZmqTransport(plan), "head")
        self.fleet = Fleet(folder, self.registry, rng)
        planner = LayerPlanner(policy=SearchPlacement(), model=make_model(), goal=ServingGoal(concurrency=CLIENTS))
        self.coordinator = Coordinator(self.registry, planner, self.fleet.describe, self._open)
        self.router = Router(self.coordinator.engines, LeastPendingTokens(), lambda: 200)

    def _open(self, rank: int, planning: Planning) -> PlannedPipeline:
        del rank
        executor = PlannedExecutor(RemoteExecutor((), NodeSupply(self.registry)), planning, _assign)
        options = PipelineOptions(releases_requests=lambda: len(self.coordinator.engines) > 1)
        return PlannedPipeline(PipelineEngine(executor, lambda tokens: "x" * len(tokens), options), executor)

    @property
    def is_converged(self) -> bool:
        """Whether the pipelines that serve are those of the plan, over nodes that are there."""
        planned = {
            (rank, stage.node, stage.layers)
            for rank, stages in self.coordinator.plan.pipelines.items()
            for stage in stages
        }
        served = {
            (status.rank, stage.node, stage.layers)
            for status in self.router.describe()
            for stage in status.stages
            if status.health.state == "ready"
        }
        joined = {node.name for node in self.registry.joined}
        return bool(served) and planned == served and {node for _, node, _ in served} <= joined

    async def converge(self) -> float | None:
        """Wait until it is converged, and return the seconds; None: it is not in `CONVERGE_S`."""
        begun = now()
        while not self.is_converged:
            if now() > begun + CONVERGE_S:
                return None
            await asyncio.sleep(0.05)
        return now() - begun


def _assign(stage: int, placed: PlacedStage) -> StageAssignment:
    model = name_toy(TOY)
    return StageAssignment(stage=stage, layers=placed.layers, model=model, node=placed.node, heartbeat_s=0.2)


@asynccontextmanager
async def running(cluster: ChurningCluster) -> AsyncIterator[None]:
    """Run the coordinator over the first nodes; in the end all processes are told to end."""
    await cluster.registry.start()
    for _ in range(FIRST):
        await cluster.fleet.join()
    following = asyncio.create_task(cluster.coordinator.run(cluster.router))
    try:
        await cluster.router.start()
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await cluster.router.stop()
        await cluster.registry.stop()
        for node in cluster.fleet.profiles:
            await cluster.fleet.supervisor.end(node)


async def run(times: int, seed: int) -> dict[str, Any]:
    """Have so many things happen, and return the figures."""
    rng, errors = random.Random(seed), list[str]()  # noqa: S311 -- to be the same every time, not to be secret
    with TemporaryDirectory(prefix="churn-") as private:
        cluster, begun = ChurningCluster(Path(private), rng), now()
        pool = ClientPool(cluster.router, rng, lambda finish: errors.append(finish.message), is_toy=True)
        strikes: Counter[str] = Counter()
        async with running(cluster):
            clients = [asyncio.create_task(pool.send_requests()) for _ in range(CLIENTS)]
            for number in range(times):
                await asyncio.sleep(rng.uniform(0.0, 2.0))
                strike = await cluster.fleet.strike(rng.choice(KINDS))
                strikes[strike.partition(" ")[0]] += 1
                print(number, strike, len(cluster.fleet.pids), len(pool.sent), file=sys.stderr, flush=True)
            converged_s = await cluster.converge()
            hung = await finish_clients(clients, pool)
        await asyncio.sleep(1.0)
        left = sum(map(is_running, cluster.fleet.all_pids))
    wrong = [sent for sent in pool.sent if sent.tokens != TOY.continuation(sent.prompt, sent.length)]
    pauses = sorted(sent.pause_s for sent in pool.sent)
    return {
        "strikes": dict(strikes),
        "requests": len(pool.sent),
        "refused": pool.num_refused,
        "seconds": round(now() - begun, 1),
        "converged_s": converged_s,
        "pause_s": {name: round(pauses[int(share * (len(pauses) - 1))], 3) for name, share in SHARES.items()},
        "errors": errors[:5],
        "faults": {"wrong": len(wrong), "hung": hung, "not converged": converged_s is None, "processes left": left},
    }


SHARES = {"median": 0.5, "p95": 0.95, "most": 1.0}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    command = ["benchmarks.membership_churn", "--times", str(options.times), "--seed", str(options.seed)]
    found = asyncio.run(run(options.times, options.seed)) | describe_run(command, ["pyzmq"])
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    assert not any(found["faults"].values())


if __name__ == "__main__":
    main()
