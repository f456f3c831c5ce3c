"""Pipelines that share a node through leases, over nodes of this process which run the toy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from parallax_cluster.layer_plan import count_leases
from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.placement import Estimator, PlacedStage, Placement, PlacementProblem, StageLease
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import LayerRange, Stage
from parallax_core.node.membership.loading import NodeRefused
from parallax_core.testing.node import open_toy, open_toy_layers
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.membership import Assign
from plugins.cluster.tests.node.coordinator.planned_cluster import PlannedCluster, coordinated
from tests.unit.node.cluster import TOY, Node, joined, soon, step_slowly, until

ROOMS = {"hub/1": 2.5, "one/1": 1.5, "two/1": 1.5, "three/1": 1.5}


@dataclass(frozen=True)
class Hub:
    """Leads a pipeline to each other node through the first layers, which only ``hub/1`` holds."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        names = [node.name for node in problem.cluster.nodes]
        others = [name for name in names if name != "hub/1"]
        if "hub/1" not in names or not others:
            return Placement()
        leases = [StageLease(number, LayerRange(0, 2), 1 / len(others)) for number in range(len(others))]
        placement = Placement(
            tuple(
                (PlacedStage("hub/1", LayerRange(0, 2), lease), PlacedStage(other, LayerRange(2, 3)))
                for other, lease in zip(others, leases, strict=True)
            )
        )
        assert estimator.estimate(placement).num_requests
        return placement


@asynccontextmanager
async def hub(*others: str) -> AsyncIterator[tuple[PlannedCluster, dict[str, Node]]]:
    """Run a cluster whose pipelines all lead through one node."""
    nodes = {name: Node(name) for name in ("hub/1", *others)}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(coordinated(ROOMS, policy=Hub()))
        await stack.enter_async_context(joined(cluster.registry, *nodes.values()))
        await until(lambda: len(cluster.places) == len(others))
        yield cluster, nodes


async def test_pipelines_lead_through_the_same_node_at_the_same_time() -> None:
    async with hub("one/1", "two/1") as (cluster, nodes):
        places = sorted(cluster.places.values())
        assert places == [
            [("hub/1", 0, 2), ("one/1", 2, 3)],
            [("hub/1~1", 0, 2), ("two/1", 2, 3)],
        ]
        prompts = [(number, 5, 9) for number in range(8)]
        answers = await asyncio.gather(*(cluster.answer(prompt, 20) for prompt in prompts))
        assert [tokens for tokens, _ in answers] == [TOY.continuation(prompt, 20) for prompt in prompts]
        assert len(nodes["hub/1"].loads) == 1, "the layers are loaded once for both"


async def test_pipeline_that_is_added_leaves_the_layers_where_they_are() -> None:
    async with hub("one/1") as (cluster, nodes):
        await cluster.check()
        asking = asyncio.create_task(cluster.answer((7, 7), 40))
        async with joined(cluster.registry, other := Node("two/1")):
            await until(lambda: len(cluster.places) == 2)
            assert (await soon(asking))[0] == TOY.continuation((7, 7), 40)
            await cluster.check()
            assert len(nodes["hub/1"].loads) == 1
            other.leave()
            await until(lambda: len(cluster.places) == 1)
            await cluster.check()
            assert len(nodes["hub/1"].loads) == 1


async def test_node_that_is_lost_takes_its_leases_with_it_and_no_request() -> None:
    async with hub("one/1", "two/1") as (cluster, nodes):
        asking = [asyncio.create_task(cluster.answer((number, 2), 60)) for number in range(4)]
        await asyncio.sleep(0.05)
        await nodes["hub/1"].kill()
        await until(lambda: not cluster.places)
        again = await Node("hub/1").join(cluster.registry.address)
        try:
            answers = await asyncio.gather(*map(soon, asking))
        finally:
            await again.kill()
        assert [tokens for tokens, _ in answers] == [TOY.continuation((number, 2), 60) for number in range(4)]


async def test_loss_of_one_pipeline_leaves_the_others_alone() -> None:
    async with hub("one/1", "two/1", "three/1") as (cluster, nodes):
        asking = [asyncio.create_task(cluster.answer((number, 2), 60)) for number in range(6)]
        await asyncio.sleep(0.05)
        await nodes["two/1"].kill()
        answers = await asyncio.gather(*map(soon, asking))
        assert [tokens for tokens, _ in answers] == [TOY.continuation((number, 2), 60) for number in range(6)]
        await until(lambda: sorted(len(stages) for stages in cluster.places.values()) == [2, 2])
        assert "two/1" not in cluster.users


@dataclass(frozen=True)
class HubIfShared:
    """As `Hub` while ``hub/1`` can be shared; else one pipeline leads through it, without a lease."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        if any(node.name == "hub/1" and node.leases for node in problem.cluster.nodes):
            return Hub().place(problem, estimator)
        names = [node.name for node in problem.cluster.nodes]
        if not {"hub/1", "one/1"} <= set(names):
            return Placement()
        return Placement(((PlacedStage("hub/1", LayerRange(0, 2)), PlacedStage("one/1", LayerRange(2, 3))),))


def refuse_to_lease(assign: Assign, progress: Progress) -> Stage:
    """Open a stage that is no lease, whatever is asked for, as a backend without leases does."""
    return open_toy(assign, progress)


async def test_node_whose_backend_has_no_leases_serves_one_pipeline_and_is_asked_once() -> None:
    nodes = {name: Node(name) for name in ("hub/1", "one/1", "two/1")}
    nodes["hub/1"].open = refuse_to_lease
    async with coordinated(ROOMS, policy=HubIfShared()) as cluster, joined(cluster.registry, *nodes.values()):
        await until(lambda: list(cluster.places.values()) == [[("hub/1", 0, 2), ("one/1", 2, 3)]])
        await cluster.check()
        loads = nodes["hub/1"].loads
        assert loads[-1].memory_share == 0, "it has a stage of its own"
        assert "hub/1" not in cluster.coordinator.unusable
        assert len([load for load in loads if load.memory_share]) <= 2, "each lease was refused at most once"

        cluster.registry.changed.set()
        await asyncio.sleep(0.5)
        assert nodes["hub/1"].loads == loads

        await nodes["hub/1"].kill()
        await until(lambda: not cluster.coordinator.plan.pipelines)
        again = await Node("hub/1").join(cluster.registry.address)
        try:
            await until(lambda: len(cluster.places) == 2)
            assert [load.memory_share for load in again.loads] == [0.5], "it may have leases when it joins anew"
        finally:
            await again.kill()


async def test_node_that_cannot_load_a_lease_for_another_reason_is_excluded() -> None:
    def fail(assign: Assign, progress: Progress) -> Stage:
        if assign.memory_share:
            raise ParallaxError("there is too little memory")
        return open_toy_layers(assign, progress)

    nodes = {name: Node(name) for name in ("hub/1", "one/1")}
    nodes["hub/1"].open = fail
    async with coordinated(ROOMS, policy=HubIfShared()) as cluster, joined(cluster.registry, *nodes.values()):
        await until(lambda: "hub/1" in cluster.coordinator.unusable)
        assert "too little memory" in cluster.coordinator.unusable["hub/1"]
        assert not cluster.places


def test_as_many_leases_are_opened_as_the_highest_number_says() -> None:
    layers = LayerRange(0, 2)

    def lease(node: str, number: int) -> PlacedStage:
        return PlacedStage(node, layers, StageLease(number, layers, 0.1))

    plan = {0: (lease("a", 2), lease("b", 0)), 3: (lease("a", 0), PlacedStage("c", layers)), 4: (lease("a", 1),)}
    assert count_leases(plan) == {"a": 2, "b": 0}
    assert count_leases({}) == {}


async def test_node_whose_lease_fails_is_excluded_as_a_whole() -> None:
    async with hub("one/1", "two/1") as (cluster, _):
        cluster.coordinator.note_fault(NodeRefused("hub/1~1", "it is broken"))
        await until(lambda: not cluster.coordinator.plan.pipelines)
        assert cluster.coordinator.unusable == {"hub/1": "it is broken"}
        assert "node 'hub/1': it is broken" in cluster.coordinator.explain()


async def test_node_whose_lease_leaves_is_replaced_as_a_whole() -> None:
    async with hub("one/1", "two/1") as (cluster, nodes):
        replacing = asyncio.create_task(cluster.coordinator.replace("hub/1~1"))
        can_release = [cluster.coordinator.can_release]
        await until(lambda: cluster.coordinator.unusable == {"hub/1": "it leaves"})
        can_release.append(cluster.coordinator.can_release)
        assert can_release == [True, False], "it is in each pipeline"
        await cluster.check()
        assert not replacing.done(), "there is no other place for the model"
        await nodes["hub/1"].kill()
        await soon(replacing)


async def test_node_that_leaves_ends_with_its_leases_once_no_request_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyStage, "step", step_slowly)  # so that no answer is complete when the node leaves
    async with hub("one/1", "two/1") as (cluster, nodes):
        asking = [asyncio.create_task(cluster.answer((number, 2), 40)) for number in range(4)]
        await asyncio.sleep(0.05)
        nodes["hub/1"].leave()
        answers = await asyncio.gather(*map(soon, asking))
        assert [tokens for tokens, _ in answers] == [TOY.continuation((number, 2), 40) for number in range(4)]
        await soon(nodes["hub/1"].has_left.wait())
        await until(lambda: not any(node.name.startswith("hub/1") for node in cluster.registry.joined))
