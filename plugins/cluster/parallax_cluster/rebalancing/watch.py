"""Compares the step times of all nodes of a cluster with what is predicted of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.rebalancing.slowdown import USUAL, SlowdownEstimator, SlowdownRules
from parallax_cluster.reports import limit_device
from parallax_cluster.step_time import StageTime, list_windows, weigh_rows
from parallax_core.api import (
    ClusterProfile,
    DeviceProfile,
    LayerRange,
    ModelDemand,
    NodeProfile,
    PlacedStage,
    PlacementProblem,
    Row,
    name_machine,
)

KEPT_S = 900.0
"""Seconds for which the slowdown of a node that is gone is kept: one that is lost for being slow often comes back."""
GAP_S = 0.02
"""Seconds between two steps of a node that are compared: its median needs no more."""


@dataclass(slots=True)
class WatchedNode:
    """A node, and what is predicted of its stages."""

    profile: NodeProfile
    estimator: SlowdownEstimator
    times: dict[LayerRange, StageTime] = field(default_factory=dict)
    latest: float | None = None
    """When a step was last compared."""


class SlowdownWatch:
    """Knows how many times slower than its profile each node computes; times are given, not read."""

    def __init__(self, model: ModelDemand, rules: SlowdownRules = USUAL) -> None:
        """Compare steps of ``model``."""
        self._model = model
        self._rules = rules
        self._windows = list_windows(model.layers)
        self._nodes: dict[str, WatchedNode] = {}
        self._former: dict[str, tuple[WatchedNode, float]] = {}
        """By machine: the node of it that is gone, and since when."""
        self._changed: dict[str, float] = {}

    @property
    def slowdowns(self) -> dict[str, float]:
        """How many times longer than predicted the steps of each node take, by name; 1 where nothing is known."""
        return {name: node.estimator.factor for name, node in self._nodes.items()}

    def follow(self, cluster: ClusterProfile, now: float) -> ClusterProfile:
        """Watch the nodes of a cluster, and return it with devices as fast as they were found to be.

        A node whose measured speed is another than before is judged anew, as one that was not there. What is known of
        a node outlasts it for `KEPT_S`, for the next one of its machine.
        """
        before, self._nodes = self._nodes, {}
        names = {node.name for node in cluster.nodes}
        gone = {name_machine(name): (node, now) for name, node in before.items() if name not in names}
        self._former = {machine: each for machine, each in self._former.items() if now < each[1] + KEPT_S} | gone
        for node in cluster.nodes:
            known = before.get(node.name) or self._former.pop(name_machine(node.name), (None, 0.0))[0]
            self._nodes[node.name] = self._keep(known, node)
        usual = self._find_usual()
        return replace(cluster, nodes=tuple(self._adjust(node, usual) for node in cluster.nodes))

    def note(self, placed: PlacedStage, rows: Sequence[Row], seconds: float, now: float) -> bool:
        """Note a step of a stage; return whether its node has become slower or faster, so that a plan is due."""
        node = self._nodes.get(placed.node)
        if node is None or not rows or (node.latest is not None and now < node.latest + GAP_S):
            return False
        node.latest = now
        if placed.layers not in node.times:
            node.times[placed.layers] = self._predict(node.profile, placed.layers)
        work = weigh_rows(rows, self._windows)
        predicted_s = node.times[placed.layers].measure(work)
        if is_due := node.estimator.note(int(work.num_tokens), predicted_s, seconds, now):
            self._changed[placed.node] = node.estimator.factor
        return is_due

    def take_changes(self, users: Collection[str], now: float) -> dict[str, float]:
        """Return the slowdowns that changed since the last call, by node; nodes not in ``users`` have no layers."""
        for name, node in self._nodes.items():
            if name not in users and node.estimator.forget(now):
                self._changed[name] = node.estimator.factor
        found = {name: factor for name, factor in self._changed.items() if name in self._nodes}
        self._changed.clear()
        return found

    def _keep(self, known: WatchedNode | None, profile: NodeProfile) -> WatchedNode:
        if known is None:
            return WatchedNode(profile, SlowdownEstimator(self._rules))
        if known.profile is not profile and _list_speeds(known.profile.device) != _list_speeds(profile.device):
            return WatchedNode(profile, SlowdownEstimator(self._rules))
        return known

    def _predict(self, profile: NodeProfile, layers: LayerRange) -> StageTime:
        problem = PlacementProblem(cluster=ClusterProfile(nodes=(profile,)), model=self._model)
        return StageTime(CostModel(problem), 0, layers.start, layers.stop)

    def _find_usual(self) -> float:
        """Return the error that is assumed of nodes that have computed nothing: that of the others, if they are fast.

        Otherwise the first nodes whose steps are compared would seem fast beside them.
        """
        found = [node.estimator.factor for node in self._nodes.values() if node.estimator.is_calibrated]
        return min(1.0, median(found)) if found else 1.0

    def _adjust(self, profile: NodeProfile, usual: float) -> NodeProfile:
        estimator, device = self._nodes[profile.name].estimator, profile.device
        factor = estimator.factor if estimator.is_calibrated else usual
        if factor == 1.0:
            return profile
        slower = replace(
            device,
            flops=device.flops / factor,
            bandwidth=device.bandwidth / factor,
            step_s=device.step_s * factor,
            layer_s=device.layer_s * factor,
            expert_layer_s=device.expert_layer_s * factor,
            forms=tuple((each, flops / factor, read / factor) for each, flops, read in device.forms),
        )
        return replace(profile, device=limit_device(slower))


def _list_speeds(device: DeviceProfile) -> tuple[float, ...]:
    efficiencies = (device.flops_efficiency, device.bandwidth_efficiency)
    overheads = (device.step_s, device.layer_s, device.expert_layer_s)
    return (device.flops, device.bandwidth, *efficiencies, *overheads, *chain(*device.forms))


def describe_changes(changes: Mapping[str, float]) -> list[str]:
    """Return which nodes compute slower or faster than predicted, in words."""
    return [f"node {name!r} takes {factor:.2g} times as long as predicted" for name, factor in changes.items()]
