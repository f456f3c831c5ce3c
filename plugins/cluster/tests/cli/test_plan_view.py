from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from parallax_cluster.cli.plan_view import MOST_STAGES, Plan, describe_plan, rank_plans, render_plans, show_time
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
    lines = list(render_plans("model", [make_plan()], "as stored"))
    found = [line.split("  ") for line in lines if "hub" in line and "KV" in line]
    shares = [[word.strip() for word in words if word.strip()][1] for words in found]
    assert shares == ["hub (25% of its KV memory)", "hub (75% of its KV memory)"]
    assert sum("KV memory)" in line for line in lines) == 2, "the other nodes share nothing"


def make_fleet(number: int, name: str = "node") -> Plan:
    """Return a plan in which each node holds the model."""
    nodes = tuple(make_node(f"{name}{rank}", 40) for rank in range(number))
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=make_model(8))
    placement = Placement(tuple((PlacedStage(node.name, LayerRange(0, 8)),) for node in nodes))
    estimate = PlacementEstimator(problem).estimate(placement)
    return Plan(change="", problem=problem, placement=placement, estimate=estimate, idle={})


def test_large_fleet_is_cut_short_with_a_summary() -> None:
    lines = list(render_plans("model", [make_fleet(100)], "as stored"))
    assert len(lines) < MOST_STAGES + 20
    assert f"and {100 - MOST_STAGES} stages more, 100 pipelines in all; --json lists all" in lines
    limits = [line for line in lines if line.startswith("limit")]
    assert sum(int(line.split()[1]) for line in limits) == 100
    assert all("of 100 pipelines: " in line for line in limits)


def test_control_characters_of_names_reach_no_terminal() -> None:
    text = "\n".join(render_plans("model", [make_fleet(1, "\x1b[31mred\t")], "as stored"))
    assert text.replace("\n", "").isprintable()
    assert "?[31mred" in text


def test_terminal_gets_bars_and_others_do_not() -> None:
    plan = make_plan()
    assert "█" in "\n".join(render_plans("model", [plan], "as stored", styled=True))
    assert "█" not in "\n".join(render_plans("model", [plan], "as stored"))


def test_range_says_where_the_figures_come_from() -> None:
    plan = make_plan()
    speed = plan.estimate.tokens_per_s
    expected = f"range      {speed / 2:.3g} to {speed * 2:.3g} tokens/s: the figures of devices are data sheet"
    assert expected in list(render_plans("model", [plan], "as stored"))


def test_changes_are_ranked_and_what_does_not_fit_comes_last() -> None:
    none = replace(make_fleet(1).estimate, num_requests=0)
    nothing = replace(make_fleet(1), placement=Placement(()), change="-all", estimate=none)
    better = replace(make_fleet(2), change="+one")
    lines = list(rank_plans(make_fleet(1), [nothing, better]))
    assert [line.split("  ")[0] for line in lines[2:]] == ["+one", "as it is", "-all"]
    assert lines[3].split()[3:5] == [f"{make_fleet(1).estimate.tokens_per_s:.4g}", "1.00"]
    assert lines[4].split()[1:3] == ["-", "-"]
    assert not list(rank_plans(make_fleet(1), []))


@pytest.mark.parametrize(("number", "more"), [(20, []), (22, ["idle       2 nodes more; --json lists all"])])
def test_so_many_idle_nodes_are_listed(number: int, more: list[str]) -> None:
    idle = {f"n{each}": "too small" for each in range(number)}
    plan = replace(make_plan(), idle=idle)
    lines = [line for line in render_plans("model", [plan], "as stored") if line.startswith("idle")]
    assert lines == [*(f"idle       n{each}: too small" for each in range(20)), *more]


def test_plans_are_compared_with_those_before_and_times_have_units() -> None:
    lines = list(render_plans("model", [make_fleet(number) for number in (1, 2, 8)], "as stored"))
    speeds = [make_fleet(number).estimate.tokens_per_s for number in (1, 2, 8)]
    found = [line.split()[1] for line in lines if line.startswith("compared")]
    assert found == [f"{after / before:.2f}" for before, after in pairwise(speeds)]
    assert [show_time(seconds) for seconds in (0.0123, 0.9994, 1.0, 61.25)] == ["12.3 ms", "999 ms", "1 s", "61.2 s"]
