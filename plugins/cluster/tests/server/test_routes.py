"""The cluster as clients see it, and replicas that are drained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from parallax_cluster.offers import DIALECTS
from parallax_cluster.server.replies import ClusterReply, ReplicaReply
from parallax_core.contracts.placement import DeviceProfile, LinkProfile, NodeProfile
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.status import NodeStatus
from parallax_core.server.hosting import FixedModel
from parallax_core.server.service import Service
from parallax_core.testing.dialect import DialectConformance
from tests.unit.server.letters import Site, error_of


class TestCluster(DialectConformance):
    [spec] = DIALECTS
    bodies = MappingProxyType[str, Any]({})


def show(site: Site) -> dict[str, Any]:
    response = site.client.get("/v1/cluster")
    assert response.status_code == 200
    msgspec.json.decode(response.content, type=ClusterReply)
    found: dict[str, Any] = response.json()
    return found


def move(site: Site, rank: object, where: str) -> Any:
    return site.client.post(f"/v1/replicas/{rank}/{where}")


def test_cluster_shows_what_stages_have_done(site: Site) -> None:
    site.ask("hello", max_tokens=3)
    found = show(site)
    assert (found["object"], found["model"], found["status"], found["waiting"]) == ("cluster", "toy", "ready", [])
    [replica] = found["replicas"]
    assert (replica["rank"], replica["drained"], replica["requests"], replica["pending_tokens"]) == (0, False, 0, 0)
    assert 0 < replica["hop_seconds"] < 1
    limits = replica["limits"]
    assert (limits["max_waiting"], limits["max_batch_tokens"]) == (256, site.stage.info.max_batch_tokens)
    assert 1 <= limits["max_running"] <= limits["max_batch_tokens"]
    [stage] = replica["stages"]
    assert (stage["layers"], stage["tokens"], stage["steps"]) == ([0, len(site.stage.info.layers)], 7, 3)
    assert stage["pools"][0]["total"] == 200
    assert 0 < stage["step_seconds"]["median"] < 1


def test_cluster_is_shown_before_it_is_ready() -> None:
    site = Site()
    with site.client:
        found = show(site)
    assert found["status"] == "starting"
    assert found["replicas"][0]["stages"][0]["layers"] is None


def test_cluster_shows_nodes_that_wait(site: Site) -> None:
    node = NodeStatus(name="mini/7", host="mini", pid=7, address="tcp://mini:9", backends=("mlx", "torch"))
    site.models.list_waiting = lambda: [node]
    [found] = show(site)["waiting"]
    assert found == {
        "node": "mini/7",
        "host": "mini",
        "pid": 7,
        "address": "tcp://mini:9",
        "backends": ["mlx", "torch"],
        "spare": None,
        "profile": None,
        "unreached": [],
    }
    node = replace(node, stage=1, layers=LayerRange(2, 5), is_loaded=True)
    [found] = show(site)["waiting"]
    assert found["spare"] == {"stage": 1, "layers": [2, 5], "loaded": True}


def test_cluster_shows_what_nodes_say_of_themselves(site: Site) -> None:
    device = DeviceProfile(memory=5, total_memory=9, flops=1e12, bandwidth=1e10, name="RTX4090", is_measured=True)
    link = LinkProfile(ends=("mini/7", "head"), round_trip_s=0.002, bandwidth=1e8)
    profile = NodeProfile(name="mini/7", device=device, disk_bandwidth=1e9)
    node = NodeStatus(
        name="mini/7", host="mini", pid=7, address="tcp://mini:9", backends=(), profile=profile, links=(link,)
    )
    site.models.list_nodes = lambda: [node]
    [found] = show(site)["nodes"]
    assert found["profile"] == {
        "device": "RTX4090",
        "memory": 5,
        "total_memory": 9,
        "flops": 1e12,
        "bandwidth": 1e10,
        "flops_efficiency": 1.0,
        "bandwidth_efficiency": 1.0,
        "step_seconds": 0.0,
        "layer_seconds": 0.0,
        "expert_layer_seconds": 0.0,
        "forms": [],
        "measured": True,
        "disk_free": None,
        "disk_bandwidth": 1e9,
        "links": [{"peer": "head", "round_trip_seconds": 0.002, "bandwidth": 1e8, "relay": None}],
    }
    node = replace(node, relays={"head": "attic/1"}, unreached=("desk/1", "cellar/1"))
    [found] = show(site)["nodes"]
    assert found["profile"]["links"][0]["relay"] == "attic/1"
    assert found["unreached"] == ["cellar/1", "desk/1"]


def test_drained_replica_gets_nothing_until_it_is_admitted_again(site: Site) -> None:
    for _ in range(2):
        response = move(site, 0, "drain")
        assert response.status_code == 200
        assert msgspec.json.decode(response.content, type=ReplicaReply).drained
    assert show(site)["replicas"][0]["drained"]
    refusal = site.ask(max_tokens=1)
    assert "draining" in error_of(refusal, 503)["message"]
    assert refusal.headers["Retry-After"]
    assert site.client.get("/health").status_code == 503
    assert not msgspec.json.decode(move(site, 0, "readmit").content, type=ReplicaReply).drained
    assert site.ask(max_tokens=1).status_code == 200


def test_layers_are_asked_to_move_where_they_can(site: Site) -> None:
    refused = site.client.post("/v1/cluster/rebalance")
    assert "layers do not move on this server" in error_of(refused, 404)["message"]

    @dataclass(frozen=True, slots=True)
    class Movable(FixedModel):
        asked: list[str]

        def rebalance(self) -> None:
            self.asked.append("once")

    [known] = site.models.all
    assert isinstance(known.hosted, FixedModel)
    known.hosted = movable = Movable(known.hosted.service, [])
    response = site.client.post("/v1/cluster/rebalance")
    assert response.status_code == 200
    msgspec.json.decode(response.content, type=ClusterReply)
    assert movable.asked == ["once"]


@pytest.mark.parametrize("where", ["drain", "readmit"])
def test_replica_that_is_not_there_is_not_found(site: Site, where: str) -> None:
    for rank in (1, 10**30):
        error = error_of(move(site, rank, where), 404)
        assert (error["type"], error["code"]) == ("not_found_error", "not_found")
        assert str(rank) in error["message"]
    for bad in ("x", "-1", "0.5"):
        assert error_of(move(site, bad, where))["param"] == "rank"


def test_engine_without_replicas_has_none_to_drain(site: Site) -> None:
    service = Service("toy", site.engine, site.text, site.reader)  # type: ignore[arg-type]
    site.models.known["toy"].hosted = FixedModel(service)
    assert "cannot be drained" in error_of(move(site, 0, "drain"), 404)["message"]
    assert len(show(site)["replicas"]) == 1
