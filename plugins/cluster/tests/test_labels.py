from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.labels import ANYWHERE, LabelRules, read_labels, write_labels
from parallax_cluster.layer_plan import LayerPlan, LayerPlanner, Stages
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.base.errors import UsageError
from parallax_core.contracts.placement import ClusterProfile, PlacedStage, ServingGoal
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

ROOMS = LabelRules(spread_by="room")
PLANNER = LayerPlanner(policy=SearchPlacement(), model=make_model(6, 1.0), goal=ServingGoal(concurrency=64))


def make_cluster(**nodes: tuple[float, str]) -> ClusterProfile:
    """Return nodes by name, each with memory for some layers of the model, and its room; empty: it has no label."""
    made = [(make_node(name, memory), room) for name, (memory, room) in nodes.items()]
    labelled = (replace(node, labels=(("room", room),)) if room else node for node, room in made)
    return ClusterProfile(nodes=tuple(labelled))


def plan(rules: LabelRules, cluster: ClusterProfile, current: dict[int, Stages] | None = None) -> LayerPlan:
    return replace(PLANNER, labels=rules).plan(cluster, current or {})


def list_nodes(found: LayerPlan) -> list[set[str]]:
    return sorted(({stage.node for stage in stages} for stages in found.pipelines.values()), key=sorted)


def test_labels_are_read_in_the_order_of_their_keys() -> None:
    labels = read_labels(["room=attic", "owner=ann", "room=cellar-2"], "--label")
    assert labels == (("owner", "ann"), ("room", "cellar-2"))
    assert write_labels(labels) == "owner=ann, room=cellar-2"


@pytest.mark.parametrize("text", ["room", "=attic", "room=", "a b=c", "room=" + "x" * 64, "room=-x", "k=é", "a=b=c"])
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        read_labels([text], "--label")


def test_machine_has_so_many_labels_at_most() -> None:
    assert len(read_labels([f"k{n}=v" for n in range(32)], "--label")) == 32
    with pytest.raises(UsageError, match="33 labels are given"):
        read_labels([f"k{n}=v" for n in range(33)], "--label")


def test_selected_nodes_alone_get_layers() -> None:
    cluster = make_cluster(a=(9, "attic"), b=(9, "cellar"), c=(9, ""))
    found = plan(LabelRules(selector=(("room", "cellar"),)), cluster)
    assert list_nodes(found) == [{"b"}]
    reason = "it is not labelled room=cellar, which node_selector asks for"
    assert found.idle == {"a": reason, "c": reason}
    assert found.cluster is cluster


def test_selector_that_no_node_meets_is_said() -> None:
    found = plan(LabelRules(selector=(("room", "x"),), spread_by="fuse"), make_cluster(a=(9, "attic")))
    assert not found.pipelines
    assert found.waits_for == "no node has the labels that are needed: room=x, fuse"


def test_each_replica_has_its_nodes_in_one_domain() -> None:
    cluster = make_cluster(a=(4, "attic"), b=(4, "cellar"), c=(4, "attic"), d=(4, "cellar"), e=(4, ""))
    assert list_nodes(plan(ROOMS, cluster)) == [{"a", "c"}, {"b", "d"}]
    assert plan(ROOMS, cluster).idle == {"e": "it has no label room, by which replicas are spread"}


def test_model_that_fits_in_no_domain_is_not_served_and_each_says_why() -> None:
    cluster = make_cluster(a=(4, "attic"), b=(4, "cellar"))
    assert list_nodes(plan(ANYWHERE, cluster)) == [{"a", "b"}]
    found = plan(ROOMS, cluster)
    assert not found.pipelines
    assert found.waits_for.startswith("no room holds the model by itself: attic: the model needs 5.6 GiB ")
    assert "; cellar: the model needs 5.6 GiB " in found.waits_for
    assert found.idle.keys() == {"a", "b"}


def test_loss_of_a_domain_leaves_the_replicas_of_others() -> None:
    first = plan(ROOMS, make_cluster(a=(9, "attic"), b=(9, "cellar")))
    after = plan(ROOMS, make_cluster(b=(9, "cellar")), dict(first.pipelines))
    assert list_nodes(after) == [{"b"}]
    [rank] = after.pipelines
    assert after.movement.load_bytes == 0
    assert after.pipelines[rank] in first.pipelines.values()


def test_pipeline_over_several_domains_is_not_kept() -> None:
    cluster = make_cluster(a=(4, "attic"), b=(4, "cellar"), c=(4, "attic"))
    crossing = {0: (PlacedStage("a", LayerRange(0, 3)), PlacedStage("b", LayerRange(3, 6)))}
    planner = replace(PLANNER, labels=ROOMS)
    for keeps in ("", "they rest"):
        assert list_nodes(planner.plan(cluster, crossing, keeps=keeps)) == [{"a", "c"}]
    assert planner.plan(cluster, {}).pipelines.keys() == {0}


def test_nodes_to_wait_for_are_those_that_may_have_layers() -> None:
    planner = replace(PLANNER, labels=LabelRules(selector=(("room", "attic"),)), min_nodes=2)
    found = planner.plan(make_cluster(a=(9, "attic"), b=(9, "cellar")), {})
    assert found.waits_for == "1 of 2 nodes have joined, and it waits for all of them"
