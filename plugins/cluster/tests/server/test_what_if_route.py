"""What a further machine would bring, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_cluster.layer_plan import LayerPlan
from parallax_cluster.placement.what_if import change_cluster
from parallax_core.api import ClusterProfile
from parallax_core.server.hosting import FixedModel
from tests.unit.server.letters import Site, error_of


@dataclass(frozen=True, slots=True)
class Planned(FixedModel):
    """A model whose plan waits for nodes, however many there are."""

    def find_layers(self) -> LayerPlan:
        return LayerPlan(cluster=ClusterProfile(nodes=()), waits_for="8 GB more")

    def plan_change(self, change: str) -> LayerPlan:
        cluster = change_cluster(ClusterProfile(nodes=()), change)
        return LayerPlan(cluster=cluster, waits_for=f"with {len(cluster.nodes)} nodes 2 GB more")


def test_change_is_planned_and_a_wrong_one_named(site: Site) -> None:
    [known] = site.models.all
    assert isinstance(known.hosted, FixedModel)
    known.hosted = Planned(known.hosted.service)
    plain = site.client.get("/v1/cluster/what-if").json()
    assert (plain["predicted"], plain["what_if"]) == (None, None)
    assert "RTX4090" in plain["devices"]
    found = site.client.get("/v1/cluster/what-if", params={"change": "+2xRTX4090@20ms"}).json()["what_if"]
    assert found == {"change": "+2xRTX4090@20ms", "predicted": None, "waits_for": "with 2 nodes 2 GB more"}
    for wrong in ("+1xABACUS", "-pi", "more"):
        assert error_of(site.client.get("/v1/cluster/what-if", params={"change": wrong}), 400)["param"] == "change"


def test_server_without_plans_says_so(site: Site) -> None:
    assert "layers are not planned" in error_of(site.client.get("/v1/cluster/what-if"), 404)["message"]
