from __future__ import annotations

from parallax_core.cluster.membership.standby_state import ClusterSettings, StandbyState
from parallax_core.config.run import RunSettings
from parallax_core.contracts.placement import PlacedStage, StageLease
from parallax_core.contracts.stage import LayerRange
from parallax_core.deploy.succession import adopt_settings, recall_plan


def test_standby_serves_what_its_coordinator_did_on_its_own_addresses() -> None:
    own = RunSettings(standby_of="plx1abc", listen="tcp://0.0.0.0:9100", port=8100, concurrency=2)
    goals = ClusterSettings(dtype="float32", concurrency=16, objective="latency")
    state = StandbyState(cluster=b"c", term=2, model="org/model", settings=goals)
    found = adopt_settings(own, state)
    assert (found.model, found.dtype, found.concurrency, found.objective) == ("org/model", "float32", 16, "latency")
    assert (found.listen, found.port, found.standby_of) == ("tcp://0.0.0.0:9100", 8100, "")
    for name in ClusterSettings.__struct_fields__:
        assert getattr(ClusterSettings(), name) == getattr(RunSettings(), name), "the usual values are the same"


DESK = StageLease(2, LayerRange(5, 30), 0.25)


def test_standby_begins_with_the_plan_of_its_coordinator_and_what_nodes_had_free() -> None:
    plan, memories = {1: [("kitchen/7", 0, 12, -1, 0, 12, 1.0), ("desk/1", 12, 30, 2, 5, 30, 0.25)]}, {"kitchen/7": 5}
    gone = {0: [("local/0", 0, 30, -1, 0, 30, 1.0)], **plan}, {"local/0": 9, **memories}
    found = recall_plan(StandbyState(cluster=b"c", term=2, model="org/model", plan=gone[0], memories=gone[1]))
    stages = (PlacedStage("kitchen/7", LayerRange(0, 12)), PlacedStage("desk/1", LayerRange(12, 30), DESK))
    assert (found.pipelines, found.memories) == ({1: stages}, memories)
