"""Shows a cluster and its machines in Prometheus's format; see docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from parallax_cluster.server.replies import NodeState
from parallax_cluster.server.view import ClusterView, NodeView
from parallax_core.api import name_machine
from parallax_core.api.deployment import PlanStatus

MOST_MACHINES = 256
"""The most machines with metrics of their own, the first by name: each adds a time series to every one of them."""
STATES: tuple[NodeState, ...] = ("idle", "loading", "serving")


class NodeCollector(Collector):
    """Collects what is known of machines, by the names that they keep when they are started again."""

    def __init__(self, read: Callable[[], ClusterView]) -> None:
        """Collect from the state that ``read`` returns."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the cluster, and those of each machine."""
        state = self._read()
        yield from _list_metrics(state.members)
        yield from _describe_plan(state.plan)


def _describe_plan(plan: PlanStatus | None) -> Iterator[Metric]:
    """Yield the metrics of a plan; None: without values."""
    waits = int(bool(plan.waits_for)) if plan else None
    yield GaugeMetricFamily("parallax_cluster_waiting", "1: no pipeline can be planned.", value=waits)
    moves = int(plan.move is not None) if plan else None
    yield GaugeMetricFamily("parallax_cluster_moving", "1: layers move, or are about to.", value=moves)
    standbys = len(plan.standbys) if plan else None
    yield GaugeMetricFamily("parallax_cluster_standbys", "Standbys that follow.", value=standbys)


def _list_metrics(members: Sequence[NodeView]) -> Iterator[Metric]:
    """Yield the metrics of nodes by state, and of machines; one with several nodes has their sum or their worst."""
    states = [member.state for member in members]
    by_state = GaugeMetricFamily("parallax_nodes", "Nodes that have joined, by state.", labels=["state"])
    for state in STATES:
        by_state.add_metric([state], states.count(state))
    yield by_state
    machines: dict[str, list[NodeView]] = {}
    for member in sorted(members, key=lambda each: each.node.name):
        machines.setdefault(name_machine(member.node.name), []).append(member)
    shown = dict(list(machines.items())[:MOST_MACHINES])
    for name, text, measure in MEASURES:
        family = GaugeMetricFamily(f"parallax_node_{name}", text, labels=["machine"])
        for machine, nodes in shown.items():
            if values := [value for node in nodes if (value := measure(node)) is not None]:
                family.add_metric([machine], max(values))
        yield family


def _find_memory(node: NodeView) -> float | None:
    return node.node.profile.device.memory if node.node.profile else None


def _find_disk(node: NodeView) -> float | None:
    return (node.node.profile.disk_free or None) if node.node.profile else None


def _count_layers(node: NodeView) -> float:
    layers = node.place.layers if node.place else None
    return layers[1] - layers[0] if layers else 0


MEASURES: tuple[tuple[str, str, Callable[[NodeView], float | None]], ...] = (
    ("memory_bytes", "Memory free for layers, as reported last.", _find_memory),
    ("disk_free_bytes", "Disk free for models.", _find_disk),
    ("layers", "Layers that it has, or is to have.", _count_layers),
    ("slowdown_ratio", "How many times longer than predicted its steps take.", lambda node: node.slowdown),
    ("drained", "1: an operator has drained it.", lambda node: int(node.is_drained)),
    ("unreached", "Nodes to which it cannot connect.", lambda node: len(node.unreached)),
    ("versions_differing", "Distributions with another version than expected.", lambda node: len(node.expected)),
)
"""The name, the help and the value of each metric of a machine."""
