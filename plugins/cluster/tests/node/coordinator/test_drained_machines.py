from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar, cast

import pytest

from parallax_cluster.node.coordinator import coordinator
from parallax_cluster.node.coordinator.drained_machines import DRAINED, DrainedMachines
from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.node.coordinator.plan_store import PlanStore
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.contracts.joining import MachineKeys
from plugins.cluster.tests.node.coordinator.planned_cluster import PlannedCluster, coordinated
from plugins.cluster.tests.node.coordinator.test_coordinator import end, gather
from tests.unit.node.cluster import open_registry, until


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOOK_S", 0.5)


def drain(cluster: PlannedCluster, *machines: str) -> None:
    cluster.coordinator.drained = set(machines)
    cluster.registry.changed.set()


async def test_layers_move_from_a_drained_machine_and_no_answer_is_lost() -> None:
    async with coordinated({"a/1": 9, "b/1": 2.5, "c/1": 2.5}) as cluster:
        nodes = await gather(cluster, "a/1", "b/1", "c/1")
        await until(lambda: cluster.users == {"a/1"})
        answer = asyncio.create_task(cluster.check(length=120))
        await until(lambda: cluster.router.describe()[0].num_requests == 1)
        drain(cluster, "a")
        await answer
        await until(lambda: cluster.users == {"b/1", "c/1"})
        assert cluster.coordinator.idle["a/1"] == DRAINED
        assert {each.name for each in cluster.registry.joined} == {"a/1", "b/1", "c/1"}
        await cluster.check()
        drain(cluster)
        await until(lambda: "a/1" not in cluster.coordinator.unusable)
        await cluster.check()
        await end(nodes)


async def test_drained_machine_keeps_layers_for_which_there_is_no_room_elsewhere() -> None:
    async with coordinated({"a/1": 9, "b/1": 1.5}) as cluster:
        nodes = await gather(cluster, "a/1", "b/1")
        await until(lambda: cluster.users == {"a/1"})
        drain(cluster, "a")
        await until(lambda: "the model needs" in cluster.coordinator.explain())
        assert f"node 'a/1': {DRAINED}" in cluster.coordinator.explain()
        assert cluster.users == {"a/1"}
        await cluster.check()
        nodes |= await gather(cluster, "c/1", "d/1")
        await until(lambda: cluster.users == {"b/1", "c/1", "d/1"})
        await cluster.check()
        await end(nodes)


async def test_machine_that_joins_drained_gets_no_layers() -> None:
    async with coordinated({"a/1": 9, "a/2": 9, "b/1": 9}) as cluster:
        drain(cluster, "a")
        nodes = await gather(cluster, "a/1")
        await until(lambda: "no node can be used yet" in cluster.coordinator.explain())
        nodes |= await gather(cluster, "a/2", "b/1")
        await until(lambda: cluster.users == {"b/1"})
        await end(nodes)


async def test_drained_machines_are_kept_for_a_restart(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans.db")
    drained = DrainedMachines(store)
    await drained.note("mini", is_drained=True)
    await drained.note("mini", is_drained=True)
    await drained.note("pi", is_drained=True)
    await drained.note("pi", is_drained=False)
    assert drained.names == DrainedMachines(store).names == {"mini"}


async def test_change_that_cannot_be_kept_does_not_happen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "plans.db"
    file.write_text("no database, and long enough to be read as one")
    drained = DrainedMachines(PlanStore(file))
    assert "machines that were drained may be used" in caplog.text
    with pytest.raises(ParallaxError, match=r"the last plan in .* cannot be used"):
        await drained.note("mini", is_drained=True)
    assert drained.names == set()


async def test_node_that_is_not_there_is_not_drained() -> None:
    async with open_registry() as registry:
        pool = NodePool(registry)
        pool.open("toy")
        with pytest.raises(UnknownName, match="no node called 'mini/7' has joined"):
            await pool.note_drained("mini/7", is_drained=True)
        with pytest.raises(UnknownName, match="no node called 'mini/7' is drained"):
            await pool.note_drained("mini/7", is_drained=False)


async def test_machine_that_is_removed_has_no_key_any_more() -> None:
    class Keys:
        """Keeps the keys of machines."""

        known: ClassVar = {"mini": b"1" * 32, "pi": b"2" * 32}
        removed: ClassVar[list[tuple[object, ...]]] = []

        def list_machines(self) -> dict[str, bytes]:
            return dict(self.known)

        def take_over(self, *given: object) -> None:
            self.removed.append(given)

    async with open_registry() as registry:
        pool = NodePool(registry)
        pool.open("toy")
        with pytest.raises(UnknownName, match="no machine called 'mini' has joined by a key of its own"):
            await pool.remove("mini/7")
        registry.keys = cast("MachineKeys", Keys())
        await pool.drained.note("mini", is_drained=True)
        await pool.remove("mini/7")
        assert Keys.removed == [({}, {b"1" * 32: "mini"}, {})]
        assert pool.drained.names == set()
        with pytest.raises(UnknownName, match="no machine called 'desk'"):
            await pool.remove("desk")
