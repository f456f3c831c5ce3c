from __future__ import annotations

import asyncio

import pytest

from parallax_cluster.node.coordinator import coordinator
from parallax_cluster.rebalancing.rest import MoveRules
from parallax_cluster.rebalancing.slowdown import SlowdownRules
from parallax_core.api import (
    Draw,
    Estimator,
    LayerRange,
    ParallaxError,
    Placement,
    PlacementProblem,
    Progress,
    Row,
    SeqId,
    Stage,
)
from parallax_core.contracts.placement import PlacedStage
from parallax_core.contracts.status import PlannedMove
from parallax_core.node.membership.loading import NodeRefused
from parallax_core.wire.membership import Assign
from plugins.cluster.tests.node.coordinator.planned_cluster import NEAR, SEARCH, PlannedCluster, coordinated
from tests.unit.node.cluster import TOY, Node, soon, until


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOOK_S", 0.5)


async def gather(cluster: PlannedCluster, *names: str) -> dict[str, Node]:
    """Have nodes join, one after the other."""
    nodes = {name: Node(name) for name in names}
    for name, node in nodes.items():
        await node.join(cluster.registry.address)
        await until(lambda name=name: name in {each.name for each in cluster.registry.joined})  # type: ignore[misc]
    return nodes


async def end(nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        await node.kill()


async def test_pipeline_opens_as_soon_as_the_model_fits() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, "a")
        await until(lambda: "one node" in cluster.router.health().reason)
        assert cluster.router.health().state == "starting"
        assert "the model needs 2.8 GiB for its weights" in cluster.router.health().reason
        nodes |= await gather(cluster, "b", "c")
        await until(lambda: cluster.router.health().state == "ready")
        [stages] = cluster.places.values()
        assert [stop - start for _, start, stop in stages] == [1, 1, 1]
        await cluster.check()
        await end(nodes)


async def test_it_waits_for_the_number_of_nodes_that_was_asked_for() -> None:
    async with coordinated({"a": 9}, min_nodes=2) as cluster:
        nodes = await gather(cluster, "a")
        await until(lambda: "1 of 2 nodes have joined" in cluster.router.health().reason)
        nodes |= await gather(cluster, "b")
        await until(lambda: cluster.router.health().state == "ready")
        await cluster.check()
        await nodes.pop("a").kill()
        await until(lambda: "there is one node" in cluster.router.health().reason)
        await end(nodes)


async def test_node_that_cannot_be_used_yet_counts_as_joined() -> None:
    async with coordinated() as cluster:
        assert cluster.coordinator.explain() == "no node has joined"
        cluster.silent.add("a")
        nodes = await gather(cluster, "a")
        expected = "for a request, and no node can be used yet; node 'a': it is silent"
        await until(lambda: cluster.coordinator.explain().endswith(expected))
        await end(nodes)


async def test_lost_node_is_replaced_by_a_plan_over_those_that_are_left() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, *"abcd")
        await until(lambda: cluster.router.health().state == "ready")
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        [lost, *_] = cluster.users
        await nodes.pop(lost).kill()
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        assert cluster.users == set(nodes)
        kept = [node for node in nodes.values() if len(node.loads) == 1]
        assert len(kept) >= 2, "nodes whose layers stay do not load them again"
        await end(nodes)


async def test_without_enough_nodes_requests_wait_for_one_to_join() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, *"abc")
        await until(lambda: cluster.router.health().state == "ready")
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        await nodes.pop("b").kill()
        await until(lambda: "2 nodes" in cluster.router.health().reason)
        nodes |= await gather(cluster, "d")
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        await end(nodes)


async def test_node_that_helps_becomes_a_second_pipeline_and_the_first_serves_on() -> None:
    async with coordinated({"a": 9, "b": 9}) as cluster:
        nodes = await gather(cluster, "a")
        await until(lambda: cluster.router.health().state == "ready")
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        nodes |= await gather(cluster, "b")
        await until(lambda: len(cluster.places) == 2)
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        assert [len(node.loads) for node in nodes.values()] == [1, 1]
        await nodes.pop("a").kill()
        await until(lambda: cluster.users == {"b"} and len(cluster.places) == 1)
        await cluster.check()
        await end(nodes)


async def test_node_that_leaves_is_replaced_without_a_loss() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, *"abcd")
        await until(lambda: cluster.router.health().state == "ready")
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        [leaver, *_] = cluster.users
        nodes[leaver].leave()
        await soon(nodes[leaver].has_left.wait())
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        assert [status.num_losses for status in cluster.router.describe()] == [0]
        assert leaver not in cluster.users
        await end(nodes)


async def test_node_that_cannot_load_is_left_out() -> None:
    def refuse(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        raise ParallaxError("there is no such backend", "install it")

    async with coordinated() as cluster:
        nodes = {name: Node(name) for name in "abcd"}
        nodes["b"].open = refuse
        for node in nodes.values():
            await node.join(cluster.registry.address)
        await until(lambda: cluster.router.health().state == "ready")
        assert cluster.users == {"a", "c", "d"}
        assert "there is no such backend; install it" in cluster.coordinator.idle["b"]
        await cluster.check()
        await end(nodes)


async def test_node_that_is_there_and_never_free_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlannedCluster, "patience_s", 0.3)
    async with coordinated() as cluster:
        taken = await gather(cluster, "b")
        await soon(cluster.registry.find(lambda node: 2 * (node.name == "b")))
        nodes = {**taken, **await gather(cluster, *"acd")}
        await until(lambda: cluster.router.health().state == "ready")
        assert cluster.users == {"a", "c", "d"}
        assert "waited 0.3 s for node 'b' in vain" in cluster.coordinator.idle["b"]
        await cluster.check()
        await end(nodes)


async def test_node_that_leaves_without_a_successor_ends_once_no_request_needs_it() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, *"abc")
        await until(lambda: cluster.router.health().state == "ready")
        asking = asyncio.create_task(cluster.answer((1, 2), 60))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        nodes["b"].leave()
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 60), "length"), finish.message
        await soon(nodes["b"].has_left.wait())
        await until(lambda: "2 nodes" in cluster.router.health().reason)
        await end(nodes)


async def test_layers_leave_a_node_whose_steps_take_long_and_that_is_said_before() -> None:
    """The steps are invented: those of a toy take no time that a device would take."""
    rules = MoveRules(slowdown=SlowdownRules(interval_s=0.05, span_s=0.4, min_intervals=4), rest_s=0.0)
    async with coordinated({"a": 2.5, "b": 2.5, "c": 2.5}, rules=rules) as cluster:
        nodes = await gather(cluster, *"abc")
        await until(lambda: len(cluster.coordinator.plan.cluster.nodes) == len(nodes))
        await until(lambda: cluster.router.health().state == "ready" and cluster.coordinator.move is None)
        before = cluster.places
        [(slow, start, stop), *_] = before[0]
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        row, moves = Row(SeqId(0), 5, (1,), (Draw(0),)), list[PlannedMove]()
        while not moves:
            await asyncio.sleep(0.02)
            cluster.coordinator.note_step(PlacedStage(slow, LayerRange(start, stop)), [row], 60.0)
            moves += [] if cluster.coordinator.move is None else [cluster.coordinator.move]
        assert moves[0].ranks == (0,)
        assert f"node '{slow}' takes" in moves[0].reason
        assert set(moves[0].loads) <= set("abc") - {slow}
        assert cluster.coordinator.slowdowns[slow] > 2
        assert cluster.places == before
        await until(lambda: cluster.coordinator.move is None)
        assert slow not in cluster.users
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        await cluster.check()
        await end(nodes)


async def test_coordinator_that_was_replaced_serves_no_more() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, *"abc")
        await until(lambda: cluster.router.health().state == "ready")
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        cluster.coordinator.end("another coordinator has taken over")
        _, finish = await asking
        assert (finish.reason, finish.message) == ("error", "another coordinator has taken over")
        await until(lambda: cluster.router.health().state == "failed")
        assert "another coordinator has taken over" in cluster.router.health().reason
        await end(nodes)


async def test_coordinator_that_was_replaced_before_it_served_never_does() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, "a")
        cluster.coordinator.end("another coordinator has taken over")
        await until(lambda: cluster.router.health().state == "failed")
        nodes |= await gather(cluster, "b", "c")
        assert cluster.router.health().state == "failed"
        await end(nodes)


ROOMS = {"a": 2.5, "b": 2.5, "c": 2.5, "d": 2.5, "whole": 9.0}
"""By node: the layers that its memory holds; the toy has three. Three nodes that are near are faster than two."""


async def serve_in_two(cluster: PlannedCluster) -> dict[str, Node]:
    """Have two nodes serve that hold the model together."""
    nodes = await gather(cluster, "a", "b")
    await until(lambda: cluster.users == {"a", "b"} and cluster.coordinator.move is None)
    return nodes


async def test_held_layers_stay_for_a_better_plan_and_move_when_a_node_is_lost() -> None:
    async with coordinated(ROOMS, rules=MoveRules(holds=True), link=NEAR) as cluster:
        nodes = await serve_in_two(cluster)
        before = cluster.places
        nodes |= await gather(cluster, "c")
        await until(lambda: "c" in cluster.coordinator.idle)
        assert "--hold-moves" in cluster.coordinator.idle["c"]
        assert cluster.places == before
        await nodes.pop("a").kill()
        await until(lambda: cluster.users == {"b", "c"})
        await cluster.check()
        await end(nodes)


async def test_held_layers_move_once_when_somebody_asks_for_it() -> None:
    async with coordinated(ROOMS, rules=MoveRules(holds=True), link=NEAR) as cluster:
        nodes = await serve_in_two(cluster)
        nodes |= await gather(cluster, "c")
        await until(lambda: "c" in cluster.coordinator.idle)
        cluster.coordinator.rebalance()
        await until(lambda: "c" in cluster.users and cluster.coordinator.move is None)
        await cluster.check()
        nodes |= await gather(cluster, "d")
        await until(lambda: "--hold-moves" in cluster.coordinator.idle.get("d", ""))
        await end(nodes)


async def test_nodes_without_layers_serve_beside_held_ones() -> None:
    async with coordinated(ROOMS, rules=MoveRules(holds=True), link=NEAR) as cluster:
        nodes = await serve_in_two(cluster)
        before = cluster.places[0]
        nodes |= await gather(cluster, "whole")
        await until(lambda: set(cluster.places) == {0, 1})
        assert cluster.places == {0: before, 1: [("whole", 0, 3)]}
        await cluster.check()
        await end(nodes)


async def test_layers_rest_after_a_move_and_then_move_to_a_better_place() -> None:
    async with coordinated(ROOMS, rules=MoveRules(rest_s=2.0), link=NEAR) as cluster:
        nodes = await serve_in_two(cluster)
        await nodes.pop("b").kill()
        nodes |= await gather(cluster, "c")
        await until(lambda: cluster.users == {"a", "c"} and cluster.coordinator.move is None)
        before = cluster.places
        nodes |= await gather(cluster, "d")
        await until(lambda: "d" in cluster.coordinator.idle)
        assert "layers have moved, and rest" in cluster.coordinator.idle["d"]
        assert cluster.places == before
        await until(lambda: cluster.users == {"a", "c", "d"})
        await cluster.check()
        await end(nodes)


async def test_nodes_that_come_back_with_their_layers_load_nothing() -> None:
    async with coordinated() as cluster:
        nodes = await gather(cluster, *"abc")
        await until(lambda: len(cluster.users) == len(nodes))
        before = cluster.places
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        silent = next(node for node in cluster.registry.joined if node.name == "b")
        silent.channel._lose(0.9)
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        assert cluster.places == before
        assert [len(node.loads) for node in nodes.values()] == [1, 1, 1]
        await end(nodes)


class FailingFirst:
    """A placement that fails once."""

    def __init__(self) -> None:
        self.failed = 0

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        if not self.failed:
            self.failed += 1
            raise ZeroDivisionError
        return SEARCH.place(problem, estimator)


async def test_cluster_that_could_not_be_planned_is_planned_with_the_next_node() -> None:
    policy = FailingFirst()
    async with coordinated({"a": 9}, policy=policy) as cluster:
        nodes = await gather(cluster, "a")
        await until(lambda: policy.failed == 1)
        assert cluster.places == {}
        nodes |= await gather(cluster, "b")
        await until(lambda: bool(cluster.users))
        await cluster.check()
        await end(nodes)


async def test_node_with_a_fault_is_planned_around_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinated({"a": 9, "b": 9}, min_nodes=2) as cluster:
        nodes = await gather(cluster, *"ab")
        await until(lambda: cluster.users == set("ab") and cluster.coordinator.move is None)
        monkeypatch.setattr(coordinator, "LOOK_S", 60.0)
        await asyncio.sleep(0.6)  # the look that has begun
        cluster.coordinator.note_fault(NodeRefused("b", "it is broken"))
        await until(lambda: cluster.users == {"a"})
        await end(nodes)
