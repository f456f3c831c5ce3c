"""Measures what the head's event loop spends on its own bookkeeping, by the number of machines.

    python -m benchmarks.membership_costs --out benchmarks/results/membership-costs.json

Machines are stubs: nodes that have joined over links to nowhere, each with a report of eight links. Figures are
milliseconds of CPU time, the least of several calls. ``look`` is what a coordinator reads of the nodes before it plans,
for one model, and for each of two; ``look_after_report`` the same after one node has reported. ``divide`` follows a
report, ``divide_after_join`` a join. ``match`` is one node that waits and one caller that wants another, half of each
being there. ``introduce`` is what a join costs beside what is sent, ``view`` one look for clients that follow the
cluster, ``standby`` the state that a standby is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.record import describe_run, write_report
from parallax_core.base.ids import further_node
from parallax_core.cluster.membership.standby_state import StandbyState, write_state
from parallax_core.cluster.rebalancing.watch import SlowdownWatch
from parallax_core.contracts.placement import LayerDemand, ModelDemand
from parallax_core.contracts.transport import Frame
from parallax_core.node.channel import Channel
from parallax_core.node.coordinator.node_pool import NodePool
from parallax_core.node.coordinator.profiles import NodeProfiles
from parallax_core.node.coordinator.rooms import MachineRooms, ModelProfiles
from parallax_core.node.membership.introductions import choose_peers, describe
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.node_matcher import NodeMatcher, NodeRequest
from parallax_core.node.status import describe_node
from parallax_core.server.cluster_events import find_changes
from parallax_core.server.cluster_view import read_cluster
from parallax_core.server.served_models import ServedModels
from parallax_core.wire.membership import Join
from parallax_core.wire.profile import DeviceReport, LinkReport, NodeReport

COUNTS = (10, 100, 1000)
TIMES = 5
NUM_LINKS = 8
GB = 10**9
MODEL = ModelDemand(layers=(LayerDemand(weights=GB, read=GB, flops=GB, kv=4096),) * 4, hidden=8192)


class StubLink:
    """A link to nowhere."""

    def __init__(self, peer: str) -> None:
        self.peer = peer

    async def send(self, frame: Frame) -> None:
        """Drop a frame."""

    async def receive(self) -> Frame:
        """Wait for ever."""
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")

    async def close(self) -> None:
        """Do nothing."""


class StubRegistry:
    """The nodes that have joined."""

    def __init__(self) -> None:
        self.joined: tuple[JoinedNode, ...] = ()
        self.changed = asyncio.Event()

    def get(self, name: str) -> JoinedNode | None:
        """Return the node of a name."""
        return next((node for node in self.joined if node.name == name), None)

    def want_leases(self, numbers: object) -> None:
        """Open none."""

    def add(self, *names: str) -> None:
        """Have nodes join."""
        self.joined = (*self.joined, *map(make_node, names))


def make_node(name: str) -> JoinedNode:
    """Return a node that has joined."""
    return JoinedNode(Channel(StubLink(name)), Join(f"tcp://{name}:9", ("torch",), "host", 1))


def make_report(machine: int, count: int, memory: int = 24 * GB) -> NodeReport:
    """Return the report of a machine of ``count``."""
    peers = [f"m{(machine + step) % count}/1" for step in range(1, NUM_LINKS)]
    return NodeReport(
        backend="torch",
        device=DeviceReport(memory=memory, total_memory=64 * GB, flops=1e13, bandwidth=1e11, name="RTX4090"),
        links=tuple(LinkReport(peer, 1e-3, 1e8) for peer in ["head", *peers]),
    )


class Costs:
    """The bookkeeping of a head with so many machines."""

    def __init__(self, count: int, num_models: int) -> None:
        self.count = count
        self.registry = StubRegistry()
        self.pool = NodePool(self.registry)  # type: ignore[arg-type]
        self.rooms = MachineRooms(self.pool)
        self.registry.add(*(f"m{i}/1" for i in range(count)))
        for machine, node in enumerate(self.registry.joined):
            node.report = make_report(machine, count)
        self.models = [self._open(f"model-{number}") for number in range(num_models)]

    def _open(self, name: str) -> ModelProfiles:
        if self.pool.models:
            self.registry.add(*(further_node(f"m{i}/1", 1) for i in range(self.count)))
        nodes = self.pool.open(name)
        return ModelProfiles(nodes, self.rooms, NodeProfiles("local/0", name).describe)

    def report(self, number: int) -> None:
        """Have a machine report other figures."""
        self.registry.joined[number].report = make_report(number, self.count, (20 + number % 4) * GB)

    def look(self) -> None:
        """Read the nodes of the last model."""
        profiles = self.models[-1]
        profiles.describe(self.pool.list_nodes(list(self.pool.models)[-1]))

    def time_looks(self) -> dict[str, float]:
        """Return the times of looks without and with news."""
        self.look()
        numbers = iter(range(TIMES))
        return {
            "look": measure(self.look),
            "look_after_report": measure(self.look, lambda: self.report(next(numbers))),
        }

    def time_divisions(self) -> dict[str, float]:
        """Return the times of dividing the nodes among the models."""
        numbers = iter(range(TIMES))
        return {
            "divide": measure(self.pool.update),
            "divide_after_join": measure(self.pool.update, lambda: self.registry.add(f"new{next(numbers)}/1")),
        }

    def time_others(self) -> dict[str, float]:
        """Return the times of what is done for one model."""
        joined = self.registry.joined
        members = [describe(node.channel, node.join) for node in joined]
        cluster = self.models[0].describe(joined).cluster
        watch = SlowdownWatch(MODEL)
        served = ServedModels(list_nodes=lambda: [describe_node(node) for node in joined])
        before = read_cluster(served)
        keys = {node.name: bytes(32) for node in joined}
        state = StandbyState(cluster=bytes(16), term=1, model="model", machines=keys, memories=dict.fromkeys(keys, GB))
        return {
            "follow": measure(lambda: watch.follow(cluster, 0.0)),
            "match": time_match(self.count) / self.count,
            "introduce": measure(lambda: choose_peers(members)),
            "view": measure(lambda: list(find_changes(before, read_cluster(served)))),
            "standby": measure(lambda: write_state(msgspec.structs.replace(state))),
        }


def time_match(count: int) -> float:
    """Return the time to match half of the nodes with callers that want them, while the other half waits."""
    loop, matcher = asyncio.get_running_loop(), NodeMatcher()
    nodes = [make_node(f"m{i}/1") for i in range(count)]

    def want(node: JoinedNode) -> NodeRequest:
        return NodeRequest(lambda each: 2 * (each.name == node.name), node.name, loop.create_future())

    begun = time.process_time()
    for idle, wanted in zip(nodes[: count // 2], nodes[count // 2 :], strict=True):
        matcher.add_node(idle)
        matcher.add_request(want(wanted))
    for wanted in nodes[count // 2 :]:
        request = matcher.add_node(wanted)
        assert request is not None, "it is wanted"
        matcher.remove_request(request)
    return 1000 * (time.process_time() - begun)


def measure(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Return the least CPU time of several calls in milliseconds, each after a call of ``before``, which is free."""
    least = float("inf")
    for _ in range(TIMES):
        before()
        begun = time.process_time()
        call()
        least = min(least, time.process_time() - begun)
    return 1000 * least


async def measure_all(count: int) -> dict[str, Any]:
    """Return all times with so many machines."""
    found: dict[str, Any] = {}
    for num_models in (1, 2):
        costs = Costs(count, num_models)
        looks = {f"{name}_{num_models}": each for name, each in costs.time_looks().items()}
        others = costs.time_others() if num_models == 1 else costs.time_divisions()
        found |= looks | others
    return {name: round(each, 3) for name, each in found.items()}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {str(count): asyncio.run(measure_all(count)) for count in COUNTS}
    report = {"unit": "ms of CPU time", "machines": found} | describe_run(["benchmarks.membership_costs"])
    print(json.dumps(report, indent=2))
    write_report(options.out, report)


if __name__ == "__main__":
    main()
