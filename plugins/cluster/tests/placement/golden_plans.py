"""Plans random clusters, and says briefly what was planned; run as a module, it writes the golden plans.

Whoever changes what is planned or predicted deletes the file, runs this, and reads what differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

from parallax_cluster.labels import LabelRules
from parallax_cluster.layer_plan import LayerPlan, LayerPlanner, Stages
from parallax_cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.contracts.placement import ClusterProfile, ModelDemand, PlacementPolicy, PlacementProblem
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import cut_links, make_problem

GOLDEN = Path(__file__).with_suffix(".json")
SEEDS = range(40)


class Scene:
    """A random cluster, for which layers are planned while its nodes come and go."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        problem = make_problem(seed, most_nodes=4)
        if seed % 3 == 1:
            problem = cut_links(problem, seed, 0.3)
        self.problem = self._vary(problem)
        rules = LabelRules(spread_by="room") if seed % 8 == 7 else LabelRules()
        policies: dict[int, PlacementPolicy] = {5: GreedyPlacement(), 6: WaterFillingPlacement()}
        policy = policies.get(seed % 8, SearchPlacement())
        self._planner = LayerPlanner(policy=policy, model=self.problem.model, goal=self.problem.goal, labels=rules)

    def plan(self) -> Iterator[LayerPlan]:
        """Yield the plan of all nodes, that without one which has layers, and those once it is back."""
        cluster = self.problem.cluster
        first = self._planner.plan(cluster, {})
        yield first
        if first.pipelines:
            lost = next(iter(first.pipelines.values()))[-1].node
            rest = tuple(node for node in cluster.nodes if node.name != lost)
            second = self._planner.plan(replace(cluster, nodes=rest), first.pipelines, has_begun=True)
            yield second
            yield self._planner.plan(cluster, second.pipelines, has_begun=True, keeps="they rest")
            yield self._planner.plan(cluster, second.pipelines, has_begun=True)

    def _vary(self, problem: PlacementProblem) -> PlacementProblem:
        """Return a problem with nodes that differ in what they have, and a model whose layers differ."""
        nodes = tuple(
            replace(
                node,
                leases=self._draw.random() < 0.5,
                cached_layers=self._draw.choice([None, LayerRange(0, 4)]),
                labels=(("room", self._draw.choice("ab")),),
                disk_free=self._draw.choice([0, 10**9, 10**12]),
            )
            for node in problem.cluster.nodes
        )
        cluster: ClusterProfile = replace(problem.cluster, nodes=nodes, head=self._draw.choice(["", "home"]))
        return replace(problem, cluster=cluster, model=self._vary_model(problem.model))

    def _vary_model(self, model: ModelDemand) -> ModelDemand:
        layers = list(model.layers)
        for index in self._draw.sample(range(len(layers)), 3):
            change = self._draw.choice(
                [
                    {"window": 256},
                    {"state": 10**6, "kv": 0},
                    {"experts": layers[index].weights // 2, "num_experts": 8, "num_active_experts": 2},
                ]
            )
            layers[index] = replace(layers[index], **change)
        borders = tuple(self._draw.choice([model.hidden, model.hidden, 2 * model.hidden, 0]) for _ in layers[1:])
        return replace(
            model,
            layers=tuple(layers),
            shared=self._draw.choice([0, 10**8]),
            borders=self._draw.choice([(), borders]),
        )


def describe(plan: LayerPlan) -> dict[str, Any]:
    """Return what was planned, with numbers of five digits."""
    return {
        "pipelines": {str(rank): _describe_stages(stages) for rank, stages in plan.pipelines.items()},
        "all": _describe_numbers(plan.estimate),
        "each": [_describe_numbers(each) for each in plan.estimate.pipelines],
        "idle": dict(plan.idle),
        "waits_for": plan.waits_for,
        "movement": _describe_numbers(plan.movement),
        "loads": dict(plan.loads),
    }


def _describe_stages(stages: Stages) -> str:
    told = (f"{stage.node} {stage.layers.start}-{stage.layers.stop}{_describe_lease(stage)}" for stage in stages)
    return ", ".join(told)


def _describe_lease(stage: Any) -> str:
    lease = stage.lease
    return f" of {lease.holds.start}-{lease.holds.stop} #{lease.number} {lease.memory_share:.5g}" if lease else ""


def _describe_numbers(found: Any) -> str:
    values = ((field.name, getattr(found, field.name)) for field in fields(found) if field.name != "pipelines")
    return " ".join(f"{name}={_describe_value(value)}" for name, value in values)


def _describe_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_describe_value, value))
    return f"{value:.5g}" if isinstance(value, int | float) else str(value)


def plan_scene(seed: int) -> list[dict[str, Any]]:
    """Return what is planned for the scene of a seed, plan by plan."""
    return [describe(each) for each in Scene(seed).plan()]


def main() -> None:
    """Write the golden plans, if there are none."""
    if not GOLDEN.exists():
        found = {str(seed): plan_scene(seed) for seed in SEEDS}
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
