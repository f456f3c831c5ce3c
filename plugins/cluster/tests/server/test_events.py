from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from parallax_cluster.server import events as module
from parallax_cluster.server.events import MOST_UNREAD, ClusterFeed, find_changes
from parallax_cluster.server.replies import ClusterReply, LeaseReply
from parallax_cluster.server.view import find_places, read_cluster, show_cluster
from parallax_core.contracts.engine import Health
from parallax_core.contracts.placement import Estimate, PipelineEstimate, PlacedStage, StageLease
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.status import (
    NodeStatus,
    PlannedMove,
    PlannedReplica,
    PlanStatus,
    ReplicaStatus,
    StageStatus,
)
from parallax_core.server.served_models import ServedModels
from tests.unit.server.letters import Site

NODE = NodeStatus(name="mini/7", host="mini", pid=7, address="tcp://mini:9", backends=("mlx",))
PIPELINE = PipelineEstimate(
    max_requests=8, num_requests=8, tokens_per_s=50.0, ttft_s=0.5, token_s=0.1, request_s=20.0, limit="compute"
)
TOTAL = Estimate(pipelines=(PIPELINE,), num_requests=8, tokens_per_s=50.0, ttft_s=0.5, token_s=0.1, request_s=20.0)
PLAN = PlanStatus(
    replicas=(PlannedReplica(rank=0, stages=(PlacedStage("mini/7", LayerRange(0, 3)),), estimate=PIPELINE),),
    estimate=TOTAL,
    idle={"slow/1": "it would slow the others down"},
    join_command="parallax join plx1",
)


class Watched:
    """A service whose nodes and plan a test changes."""

    def __init__(self, site: Site) -> None:
        self.nodes: list[NodeStatus] = []
        self.plan: PlanStatus | None = None
        self.models = site.models
        self.models.list_nodes = lambda: self.nodes
        self.models.find_plan = lambda _: self.plan


def view_cluster(models: ServedModels) -> ClusterReply:
    return show_cluster(read_cluster(models))


async def read(events: AsyncIterator[bytes]) -> tuple[str, Any]:
    async with asyncio.timeout(10):
        name, data = (await anext(events)).decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_nodes_have_a_state_layers_and_a_reason_to_be_idle(site: Site) -> None:
    watched = Watched(site)
    watched.nodes = [NODE, replace(NODE, name="slow/1"), replace(NODE, name="new/1")]
    assert [node.state for node in view_cluster(watched.models).nodes] == ["idle"] * 3
    watched.plan = PLAN
    found = view_cluster(watched.models)
    shown = [(node.state, node.replica, node.layers, node.idle_reason) for node in found.nodes]
    slow = "it would slow the others down"
    assert shown == [("loading", 0, [0, 3], None), ("idle", None, None, slow), ("idle", None, None, None)]
    assert found.plan is not None
    assert found.plan.join_command == "parallax join plx1"
    assert found.plan.predicted is not None
    assert (found.plan.predicted.tokens_per_second, found.plan.predicted.requests) == (50.0, 8)
    assert found.plan.replicas[0].limit == "compute"


def test_node_with_leases_is_shown_as_one(site: Site) -> None:
    watched, holds = Watched(site), LayerRange(0, 3)
    leased = [PlacedStage("mini/7", LayerRange(0, 2), StageLease(number, holds, 0.5)) for number in range(2)]
    planned = tuple(PlannedReplica(rank=rank, stages=(stage,), estimate=PIPELINE) for rank, stage in enumerate(leased))
    watched.nodes, watched.plan = [NODE], replace(PLAN, replicas=planned)
    found = view_cluster(watched.models)
    assert [(node.node, node.state) for node in found.nodes] == [("mini/7", "loading")]
    assert found.plan is not None
    shown = [stage.lease for replica in found.plan.replicas for stage in replica.stages]
    assert shown == [LeaseReply(number=number, holds=[0, 3], memory_share=0.5) for number in range(2)]
    ready = StageStatus(stage=0, node="mini/7~1", pid=7, layers=LayerRange(0, 2))
    replica = ReplicaStatus(health=Health(state="ready"), rank=1, stages=(ready,))
    places = find_places("letters", (replica,), watched.plan)
    assert [(name, place.rank, place.is_ready) for name, place in places.items()] == [("mini/7", 1, True)]


def test_move_and_slow_nodes_are_shown_and_told(site: Site) -> None:
    watched = Watched(site)
    watched.nodes, watched.plan = [NODE], PLAN
    first = read_cluster(watched.models)
    before = show_cluster(first)
    assert (before.nodes[0].slowdown, before.plan and before.plan.move) == (1.0, None)
    move = PlannedMove(reason="node 'mini/7' takes long", loads={"mini/7": 5, "slow/1": 7}, load_s=2.5, ranks=(0, 2))
    watched.plan = replace(PLAN, move=move, slowdowns={"mini/7": 2.0}, term=2, standbys=("desk/standby",))
    second = read_cluster(watched.models)
    after = show_cluster(second)
    assert after.plan is not None
    assert after.plan.move is not None
    assert msgspec.to_builtins(after.plan.move) == {
        "reason": "node 'mini/7' takes long",
        "bytes": 12,
        "nodes": {"mini/7": 5, "slow/1": 7},
        "seconds": 2.5,
        "replicas": [0, 2],
    }
    assert after.nodes[0].slowdown == 2.0
    assert (before.plan and before.plan.term, after.plan.term, after.plan.standbys) == (None, 2, ["desk/standby"])
    assert [name for name, _ in find_changes(first, second)] == ["node_changed", "plan"]


def test_measured_time_is_that_of_all_stages_and_links(site: Site) -> None:
    watched = Watched(site)
    watched.plan = PLAN
    site.ask("hello", max_tokens=3)
    plan = view_cluster(watched.models).plan
    assert plan is not None
    assert 0 < (plan.replicas[0].measured_token_seconds or 0) < 1


def test_changes_name_what_has_changed(site: Site) -> None:
    watched = Watched(site)
    empty = read_cluster(watched.models)
    assert list(find_changes(empty, empty)) == []
    watched.nodes = [NODE]
    one = read_cluster(watched.models)
    assert [(name, data.node) for name, data in find_changes(empty, one)] == [("node_joined", "mini/7")]
    assert [(name, data.node) for name, data in find_changes(one, empty)] == [("node_left", "mini/7")]
    watched.plan = PLAN
    planned = read_cluster(watched.models)
    assert [name for name, _ in find_changes(one, planned)] == ["node_changed", "plan"]
    site.ask("hello", max_tokens=3)
    assert list(find_changes(planned, read_cluster(watched.models))) == [], "loads are no changes"


async def test_clients_are_told_of_changes_and_share_one_look(site: Site) -> None:
    watched = Watched(site)
    feed = ClusterFeed(watched.models)
    clients = [feed.listen() for _ in range(3)]
    for client in clients:
        name, data = await read(client)
        assert (name, data["object"], data["nodes"]) == ("cluster", "cluster", [])
    waiting = [asyncio.create_task(read(client)) for client in clients]
    await asyncio.sleep(0)
    watched.nodes = [NODE]
    for task in waiting:
        name, data = await task
        assert (name, data["node"], data["state"]) == ("node_joined", "mini/7", "idle")
    for client in clients:
        await client.aclose()  # type: ignore[attr-defined]
    assert feed.num_listeners == 0


async def test_change_while_a_client_reads_the_state_comes_next(site: Site) -> None:
    watched = Watched(site)
    feed = ClusterFeed(watched.models)
    first, second = feed.listen(), feed.listen()
    assert (await read(first))[0] == (await read(second))[0] == "cluster"
    watched.nodes = [NODE]
    for events in (first, second):  # the second client asks for no event before the first was told
        assert (await read(events))[0] == "node_joined"
        await events.aclose()  # type: ignore[attr-defined]


async def test_client_that_reads_too_slowly_is_disconnected_and_the_others_are_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_changes", lambda before, now: [("x", 1)] * (MOST_UNREAD + 2))
    watched = Watched(site)
    feed = ClusterFeed(watched.models)
    slow = feed.listen()
    await read(slow)
    first = asyncio.create_task(read(slow))
    await asyncio.sleep(0)
    assert (await first)[0] == "x"
    rest = [event async for event in slow]
    assert len(rest) <= MOST_UNREAD
    assert feed.num_listeners == 0


def test_route_needs_the_role_of_an_admin(site: Site) -> None:
    assert site.app.state.roles.find("/v1/cluster/events", "GET") == "admin"


def test_plan_says_whom_nodes_do_not_reach_now(site: Site) -> None:
    """What a node has reported of a link is older than what the plan counts with."""
    watched = Watched(site)
    watched.nodes = [replace(NODE, unreached=("slow/1",)), replace(NODE, name="slow/1")]
    assert [node.unreached for node in view_cluster(watched.models).nodes] == [["slow/1"], []]
    watched.plan = replace(PLAN, unreachable=frozenset({("slow/1", "mini/7"), ("slow/1", "desk/1")}))
    assert [node.unreached for node in view_cluster(watched.models).nodes] == [[], ["desk/1", "mini/7"]]
