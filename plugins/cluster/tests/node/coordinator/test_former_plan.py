from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from parallax_cluster.layer_plan import LayerPlanner
from parallax_cluster.node.coordinator.coordinator import UsableNodes
from parallax_cluster.node.coordinator.former_plan import OWN_S, REUNION_S, FormerNodes, LastingPlanner, make_lasting
from parallax_cluster.node.coordinator.plan_store import FormerPlan, PlanStore
from parallax_cluster.node.coordinator.profiles import NodeProfiles
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.contracts.placement import ClusterProfile, PlacedStage, ServingGoal
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

GOAL = ServingGoal(prompt_tokens=4, output_tokens=8, concurrency=4)
PLANNER = LayerPlanner(policy=SearchPlacement(), model=make_model(4, 1.0), goal=GOAL)
NAME = "hf:org/model"


def place(*stages: tuple[str, int, int]) -> tuple[PlacedStage, ...]:
    return tuple(PlacedStage(node, LayerRange(start, stop)) for node, start, stop in stages)


FORMER = FormerPlan({0: place(("b", 0, 2), ("c", 2, 4))}, {"b": 7})


class Profiles(NodeProfiles):
    """The profiles of nodes that are named only."""

    def __init__(self) -> None:
        super().__init__("local/0")
        self.memories_seen = {"b": 9}

    def describe(self, nodes: Collection[object]) -> UsableNodes:
        names = [str(name) for name in nodes]
        profiles = tuple(make_node(name, 2.5) for name in names if not name.startswith("new"))
        return UsableNodes(ClusterProfile(nodes=profiles), {name: "new" for name in names if name.startswith("new")})

    @property
    def memories(self) -> dict[str, int]:
        return self.memories_seen


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def describe(former: FormerNodes, *names: str) -> tuple[set[str], dict[str, str]]:
    usable = former.describe(names)  # type: ignore[arg-type]
    return {node.name for node in usable.cluster.nodes}, dict(usable.others)


def test_nodes_of_the_last_plan_are_waited_for() -> None:
    former = FormerNodes(Profiles(), FORMER, clock=Clock())
    assert describe(former) == (set(), {})
    reason = "it waits for c, as before the restart of the server"
    assert describe(former, "a", "b", "new") == (set(), {"a": reason, "b": reason, "new": "new"})
    assert describe(former, "a", "b", "c") == ({"a", "b", "c"}, {})
    assert describe(former, "a") == ({"a"}, {}), "only once"


def test_nodes_are_not_waited_for_for_ever() -> None:
    clock = Clock()
    former = FormerNodes(Profiles(), FORMER, clock=clock)
    assert describe(former, "b")[0] == set()
    clock.now = REUNION_S
    assert describe(former, "b")[0] == {"b"}


def test_node_of_the_servers_machine_has_longer_to_come() -> None:
    clock, plan = Clock(), FormerPlan({0: place(("b", 0, 2), ("local/0", 2, 4))})
    former, alone = FormerNodes(Profiles(), plan, "local/0", clock), FormerNodes(Profiles(), plan, clock=clock)
    assert describe(alone, "b")[0] == {"b"}, "it is not started any more"
    clock.now = REUNION_S
    assert describe(former, "b")[0] == set()
    clock.now = OWN_S
    assert describe(former, "b")[0] == {"b"}


def test_without_a_last_plan_nobody_is_waited_for() -> None:
    assert describe(FormerNodes(Profiles(), FormerPlan(), clock=Clock()), "a")[0] == {"a"}


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "plans.db")


def make_cluster(*names: str) -> ClusterProfile:
    return ClusterProfile(nodes=tuple(make_node(name, 2.5) for name in names))


def lasting(store: PlanStore) -> LastingPlanner:
    return make_lasting(PLANNER, store, NAME, Profiles())


def test_restarted_coordinator_goes_on_with_its_last_plan(store: PlanStore) -> None:
    first = lasting(store).plan(make_cluster("a", "b"), {})
    assert first.movement.load_bytes > 0
    again = lasting(store).plan(make_cluster("a", "b"), {})
    assert again.pipelines == first.pipelines
    assert again.movement.load_bytes == 0
    fresh = LayerPlanner.plan(lasting(store), make_cluster("a", "b"), {})
    assert fresh.movement.load_bytes > 0, "without the last plan they would load everything"


def test_plan_is_kept_whenever_it_changes(store: PlanStore) -> None:
    planner = lasting(store)
    one = planner.plan(make_cluster("a", "b"), {})
    assert store.find(NAME) == FormerPlan(one.pipelines, {"b": 9})
    other = planner.plan(make_cluster("b", "c"), one.pipelines, has_begun=True)
    assert store.find(NAME).pipelines == other.pipelines
    planner.plan(make_cluster("b"), other.pipelines, has_begun=True)
    assert store.find(NAME).pipelines == other.pipelines, "one that does not fit is none"


def test_last_plan_counts_only_before_the_first(store: PlanStore) -> None:
    store.save(NAME, FORMER)
    plan = lasting(store).plan(make_cluster("b", "c"), {}, has_begun=True)
    assert plan.movement.load_bytes > 0


def test_file_that_cannot_be_used_is_said_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "plans.db").write_bytes(b"no database" * 100)
    planner = lasting(PlanStore(tmp_path / "plans.db"))
    for _ in range(3):
        assert planner.plan(make_cluster("a", "b"), {}).pipelines
    assert "the last plan in" in caplog.text
    assert caplog.text.count("after a restart of the server nodes may have to load other layers") == 1
    (tmp_path / "plans.db").unlink()
    with caplog.at_level("INFO"):
        planner.plan(make_cluster("a", "b"), {})
    assert "the last plan can be written again" in caplog.text
