"""Nodes that cannot connect to others: they are planned around, and what serves is not left for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise, permutations

import pytest

from parallax_cluster.node.coordinator import coordinator, link_checks
from parallax_core.base.errors import Unavailable
from parallax_core.contracts.placement import Estimator, PlacedStage, Placement, PlacementProblem
from parallax_core.contracts.stage import LayerRange
from plugins.cluster.tests.node.coordinator.planned_cluster import PlannedCluster, coordinated
from plugins.cluster.tests.node.coordinator.test_coordinator import end
from tests.unit.node.cluster import TOY, Node, soon, until
from tests.unit.node.parted import Walls

PAIR = {"a": 3.5, "b": 3.5}
"""Each has room for the toy's three layers."""


class Chain:
    """Places the model on as many nodes as it can, in one pipeline."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        names = [node.name for node in problem.cluster.nodes]
        for size in range(min(len(names), 3), 0, -1):
            stops = [*range(1, size), 3]
            for order in permutations(names, size):
                stages = zip(order, pairwise([0, *stops]), strict=True)
                placement = Placement((tuple(PlacedStage(node, LayerRange(*cut)) for node, cut in stages),))
                with suppress(ValueError):
                    estimator.estimate(placement)
                    return placement
        return Placement()


CHAIN = Chain()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_checks, "RETRY_S", 0.1)
    monkeypatch.setattr(link_checks, "REFUSED_S", 0.1)
    monkeypatch.setattr(coordinator, "LOOK_S", 0.1)


async def join(cluster: PlannedCluster, nodes: dict[str, Node], *names: str) -> None:
    for name in names or nodes:
        await nodes[name].join(cluster.registry.address)
        await until(lambda name=name: cluster.registry.has(name))  # type: ignore[misc]


def is_ready(cluster: PlannedCluster) -> bool:
    return cluster.router.health().state == "ready"


def list_hops(cluster: PlannedCluster) -> set[tuple[str, str]]:
    """Return the links over which pipelines that are open lead."""
    return {hop for stages in cluster.places.values() for hop in pairwise(node for node, *_ in stages)}


async def watch(cluster: PlannedCluster, states: set[str]) -> None:
    """Note every state of the router."""
    while True:
        states.add(cluster.router.health().state)
        await asyncio.sleep(0)


async def ask_again_and_again(cluster: PlannedCluster, condition: Callable[[], bool]) -> None:
    """Have answers computed, one after the other, until a condition is true; each is right."""
    while not condition():
        with suppress(Unavailable):  # it is not ready; the next one may come a moment later
            await cluster.check(length=150)
        await asyncio.sleep(0.01)


def list_attempts(walls: Walls) -> set[tuple[str, str]]:
    return set(walls.attempts)


async def test_nodes_that_reach_each_other_form_one_pipeline() -> None:
    """Otherwise the following tests would prove nothing."""
    walls = Walls()
    async with coordinated(PAIR, policy=CHAIN) as cluster:
        nodes = walls.build("a", "b")
        await join(cluster, nodes, "a")
        await until(lambda: is_ready(cluster))
        await join(cluster, nodes, "b")
        await until(lambda: cluster.users == {"a", "b"})
        await end(nodes)


@pytest.mark.parametrize("gaps", [{("a", "b"), ("b", "a")}, {("a", "b")}, {("b", "a")}])
async def test_node_that_joins_and_cannot_be_linked_disturbs_nobody(gaps: set[tuple[str, str]]) -> None:
    walls, states = Walls(gaps), set[str]()
    async with coordinated(PAIR, policy=CHAIN) as cluster:
        nodes = walls.build("a", "b")
        await join(cluster, nodes, "a")
        await until(lambda: is_ready(cluster))
        watching = asyncio.create_task(watch(cluster, states))
        asking = asyncio.create_task(cluster.answer((1, 2), 190))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        await join(cluster, nodes, "b")
        await until(lambda: list_attempts(walls) >= gaps or cluster.users == {"a", "b"})
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 190), "length"), finish.message
        if len(gaps) == 1:
            await until(lambda: list_hops(cluster) == {*permutations("ab", 2)} - gaps)
        else:
            await asyncio.sleep(0.5)
            assert len(nodes["a"].loads) == 1
        assert next(status.num_losses for status in cluster.router.describe()) == 0
        assert states == {"ready"}
        watching.cancel()
        await cluster.check()
        await end(nodes)


@pytest.mark.parametrize("way", list(permutations("abc")))
async def test_only_order_in_which_nodes_reach_each_other_is_used(way: tuple[str, ...]) -> None:
    walls = Walls({*permutations("abc", 2)} - {*pairwise(way)})
    async with coordinated() as cluster:
        nodes = walls.build(*"abc")
        await join(cluster, nodes)
        await until(lambda: list_hops(cluster) == {*pairwise(way)})
        await cluster.check()
        assert all(len(node.loads) == 1 for node in nodes.values()), "links are tried before layers are loaded"
        await end(nodes)


async def test_partition_moves_the_pipeline_to_an_order_without_that_link_and_answers_go_on() -> None:
    walls = Walls()
    async with coordinated() as cluster:
        nodes = walls.build(*"abc")
        await join(cluster, nodes)
        await until(lambda: is_ready(cluster))
        [(one, other), _] = pairwise(node for node, *_ in cluster.places[0])
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        await walls.part(one, other)
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        assert cluster.users == set("abc")
        assert list_hops(cluster).isdisjoint({(one, other), (other, one)})
        await end(nodes)


async def test_nothing_serves_without_a_link_until_it_works_and_the_reason_is_told() -> None:
    walls = Walls()
    async with coordinated({"a": 1.5, "b": 2.5}) as cluster:
        nodes = walls.build("a", "b")
        await join(cluster, nodes)
        await until(lambda: is_ready(cluster))
        asking = asyncio.create_task(cluster.answer((1, 2), 150))
        await until(lambda: bool(cluster.router.stats()[0].output_tokens))
        await walls.part("a", "b")
        reason = "a does not reach b; b does not reach a"
        await until(lambda: reason in cluster.router.health().reason)
        assert cluster.router.health().state == "starting"
        assert [status.health.state for status in cluster.router.describe()] == ["starting"]
        assert cluster.coordinator.idle["a"] == "it does not reach b and it is not reached by b"
        walls.mend()
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 150), "length"), finish.message
        await until(lambda: is_ready(cluster))
        await end(nodes)


async def test_move_that_fails_goes_back_to_the_pipeline_that_served() -> None:
    """The new link can be tried once, and fails when it is to be used: twice from each end."""
    walls = Walls(refusals={("a", "b"): 1, ("b", "a"): 1})
    reasons = set[str]()
    async with coordinated(PAIR, policy=CHAIN) as cluster:
        nodes = walls.build("a", "b")
        await join(cluster, nodes, "a")
        await until(lambda: is_ready(cluster))
        asking = asyncio.create_task(ask_again_and_again(cluster, lambda: bool(reasons) and is_ready(cluster)))
        await join(cluster, nodes, "b")
        while not asking.done():
            health = cluster.router.health()
            reasons |= {health.reason} if health.state == "starting" else set()
            await asyncio.sleep(0)
        await asking
        assert any("has no links: no node answers" in reason for reason in reasons)
        await until(lambda: is_ready(cluster) and cluster.users == {"a"})
        assert [status.num_losses for status in cluster.router.describe()] == [0]
        await end(nodes)


async def test_link_that_works_again_is_used() -> None:
    walls = Walls({("a", "b"), ("b", "a")})
    async with coordinated({"a": 1.5, "b": 2.5}) as cluster:
        nodes = walls.build("a", "b")
        await join(cluster, nodes)
        await until(lambda: "b does not reach a" in cluster.router.health().reason)
        walls.gaps.discard(("b", "a"))
        await until(lambda: list_hops(cluster) == {("b", "a")})
        await cluster.check()
        await end(nodes)


async def test_node_that_is_lost_while_links_are_tried_is_planned_around() -> None:
    walls = Walls({("a", "b"), ("b", "a")})
    async with coordinated({"a": 3.5, "b": 3.5, "c": 3.5}) as cluster:
        nodes = walls.build(*"abc")
        await join(cluster, nodes)
        await until(lambda: is_ready(cluster))
        for name in list(cluster.users):
            if len(nodes) > 1:
                await soon(nodes.pop(name).kill())
        await until(lambda: is_ready(cluster) and cluster.users == set(nodes))
        await cluster.check()
        await end(nodes)


async def test_rooms_between_which_there_are_no_links_are_found() -> None:
    names = [f"{room}{number}" for room in "abc" for number in range(3)]
    walls = Walls({pair for pair in permutations(names, 2) if pair[0][0] != pair[1][0]})
    async with coordinated() as cluster:
        nodes = walls.build(*names)
        await join(cluster, nodes, *sorted(names, key=lambda name: name[1]))
        await until(lambda: is_ready(cluster) and {len(each) for each in cluster.places.values()} == {3})
        assert all(one[0] == other[0] for one, other in list_hops(cluster))
        await cluster.check()
        await end(nodes)
