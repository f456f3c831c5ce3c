from __future__ import annotations

from dataclasses import replace

from parallax_cluster.cli.plan_view import Plan, describe_plan, render_plans
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_core.contracts.placement import ClusterProfile, PlacedStage, Placement, PlacementProblem, StageLease
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

HOLDS = LayerRange(0, 6)
NODES = tuple(replace(make_node(name, 40), leases=True) for name in ("hub", "one", "two"))
PLACEMENT = Placement(
    tuple(
        (
            PlacedStage("hub", LayerRange(0, stop), StageLease(number, HOLDS, share)),
            PlacedStage(other, LayerRange(stop, 8)),
        )
        for number, (other, stop, share) in enumerate((("one", 4, 0.25), ("two", 6, 0.75)))
    )
)


def make_plan() -> Plan:
    problem = PlacementProblem(cluster=ClusterProfile(nodes=NODES), model=make_model(8))
    estimate = PlacementEstimator(problem).estimate(PLACEMENT)
    return Plan(change="", problem=problem, placement=PLACEMENT, estimate=estimate, idle={})


def test_lease_is_part_of_its_stage_in_json() -> None:
    stages = [pipeline["stages"] for pipeline in describe_plan(make_plan())["pipelines"]]
    assert [each[0]["node"] for each in stages] == ["hub", "hub"]
    assert [each[0]["lease"] for each in stages] == [
        {"number": 0, "holds": [0, 6], "memory_share": 0.25},
        {"number": 1, "holds": [0, 6], "memory_share": 0.75},
    ]
    assert [each[0]["layers"] for each in stages] == [[0, 4], [0, 6]]
    assert [each[1]["lease"] for each in stages] == [None, None]


def test_table_names_the_share_of_memory_of_each_lease() -> None:
    lines = list(render_plans("model", [make_plan()]))
    found = [line.split("  ") for line in lines if "hub" in line and "KV" in line]
    shares = [[word.strip() for word in words if word.strip()][1] for words in found]
    assert shares == ["hub (25% of its KV memory)", "hub (75% of its KV memory)"]
    assert sum("KV memory)" in line for line in lines) == 2, "the other nodes share nothing"
