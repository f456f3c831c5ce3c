"""Machines that are drained and taken back over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from parallax_cluster.server.replies import ClusterReply
from parallax_core.base.errors import UnknownName
from parallax_core.contracts.status import NodeStatus, PlanStatus
from parallax_core.server.hosting import FixedModel
from tests.unit.server.letters import Site, error_of


@dataclass(frozen=True, slots=True)
class Hosted(FixedModel):
    """A model whose machines can be drained."""

    drained: set[str] = field(default_factory=set)
    removed: list[str] = field(default_factory=list)

    async def note_drained(self, node: str, *, is_drained: bool) -> None:
        if not node.startswith("mini"):
            raise UnknownName(f"no node called {node!r} has joined")
        (self.drained.add if is_drained else self.drained.discard)(node)

    async def remove_machine(self, node: str) -> None:
        if not node.startswith("mini"):
            raise UnknownName(f"no machine called {node!r} has joined")
        self.removed.append(node)


def test_node_is_drained_and_taken_back(site: Site) -> None:
    [known] = site.models.all
    assert isinstance(known.hosted, FixedModel)
    known.hosted = hosted = Hosted(known.hosted.service)
    response = site.client.post("/v1/nodes/mini/7/drain")
    assert response.status_code == 200
    msgspec.json.decode(response.content, type=ClusterReply)
    assert hosted.drained == {"mini/7"}
    assert "no node called 'pi'" in error_of(site.client.post("/v1/nodes/pi/drain"), 404)["message"]
    assert site.client.post("/v1/nodes/mini%2F7/resume").status_code == 200
    assert hosted.drained == set()


def test_drained_machine_is_removed(site: Site) -> None:
    [known] = site.models.all
    assert isinstance(known.hosted, FixedModel)
    known.hosted = hosted = Hosted(known.hosted.service)
    site.models.list_nodes = lambda: [NodeStatus(name="mini/7", host="x", pid=7, address="", backends=())]
    refused = error_of(site.client.post("/v1/nodes/mini/7/remove"), 409)
    assert (refused["message"].partition(";")[0], hosted.removed) == ("mini/7 is not drained", [])
    assert "parallax nodes drain mini" in refused["message"]
    site.models.find_plan = lambda _: PlanStatus(drained=frozenset({"mini"}))
    assert site.client.post("/v1/nodes/mini/7/remove").status_code == 200
    assert site.client.post("/v1/nodes/mini-that-is-gone/remove").status_code == 200
    assert hosted.removed == ["mini/7", "mini-that-is-gone"]
    assert "no machine called 'pi'" in error_of(site.client.post("/v1/nodes/pi/remove"), 404)["message"]


def test_server_without_such_nodes_says_so(site: Site) -> None:
    for where in ("drain", "resume", "remove"):
        error = error_of(site.client.post(f"/v1/nodes/mini/{where}"), 404)
        assert "nodes cannot be drained on this server" in error["message"]


def test_cluster_shows_which_nodes_are_drained(site: Site) -> None:
    nodes = [NodeStatus(name=name, host="x", pid=7, address="", backends=()) for name in ("mini/7", "pi/7")]
    site.models.list_nodes = lambda: nodes
    site.models.find_plan = lambda _: PlanStatus(drained=frozenset({"mini", "gone"}))
    found = site.client.get("/v1/cluster").json()
    assert [each["drained"] for each in found["nodes"]] == [True, False]
    assert found["plan"]["drained"] == ["gone", "mini"]
