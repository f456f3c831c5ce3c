"""The leases of a node: when they are opened, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from parallax_cluster.node.worker.leases import MOST_LEASES, NodeLeases
from parallax_cluster.wire.further import OpenLease
from parallax_core.base.errors import ParallaxError, PeerLost, StageHung, StageLost
from tests.unit.node.cluster import soon, until


class Lease:
    """A lease that runs until it is released, cancelled or fails."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_needed = False
        self.num_leaves = 0
        self.is_running = False
        self._end = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        self.num_leaves += 1

    def end(self, error: ParallaxError | None = None) -> None:
        """Have it end: the head has released it, or it fails."""
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    async def run(self) -> None:
        self.is_running = True
        try:
            await self._end
        finally:
            self.is_running = False


class Leases(NodeLeases):
    """The leases of a node, and all that it has ever made."""

    def __init__(self) -> None:
        self.made: list[Lease] = []
        super().__init__("one/1", self._make_one)

    def _make_one(self, name: str) -> Lease:
        self.made.append(Lease(name))
        return self.made[-1]

    async def begin(self, *numbers: int) -> None:
        """Open leases, and wait until they run."""
        for number in numbers:
            self.open(OpenLease(number))
        await until(lambda: all(lease.is_running for lease in self.made))


async def test_lease_is_opened_once_for_each_number() -> None:
    leases = Leases()
    await leases.begin(1, 3, 1, 3)
    assert [lease.name for lease in leases.made] == ["one/1~1", "one/1~3"]
    await soon(leases.close())


async def test_leases_are_needed_while_a_pipeline_uses_one() -> None:
    leases = Leases()
    found = [leases.is_needed]
    await leases.begin(1, 2)
    found.append(leases.is_needed)
    leases.made[1].is_needed = True
    found.append(leases.is_needed)
    await soon(leases.close())
    assert [*found, leases.is_needed] == [False, False, True, False]


async def test_head_cannot_have_a_node_open_any_number_of_leases(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    await leases.begin(*range(1, MOST_LEASES + 3))
    assert len(leases.made) == MOST_LEASES
    assert f"no further lease is opened: there are {MOST_LEASES}" in caplog.text
    await soon(leases.close())


async def test_node_without_leases_opens_none() -> None:
    leases = NodeLeases("one/1")
    leases.open(OpenLease(1))
    assert not leases.is_needed
    await soon(leases.leave())
    await soon(leases.close())


async def test_all_leases_end_when_the_node_has_lost_its_head_and_are_opened_anew() -> None:
    leases = Leases()
    await leases.begin(1, 2)
    await soon(leases.close())
    assert not any(lease.is_running for lease in leases.made)
    await soon(leases.close())
    leases.open(OpenLease(1))
    await until(lambda: leases.made[-1].is_running)
    assert [lease.name for lease in leases.made] == ["one/1~1", "one/1~2", "one/1~1"]
    await soon(leases.close())


async def test_node_leaves_once_all_its_leases_have_left() -> None:
    leases = Leases()
    await leases.begin(1, 2)
    leaving = asyncio.create_task(leases.leave())
    await until(lambda: [lease.num_leaves for lease in leases.made] == [1, 1])
    leases.made[0].end()
    await until(lambda: not leases.made[0].is_running)
    assert not leaving.done()
    leases.made[1].end()
    await soon(leaving)


async def test_lease_that_fails_ends_alone_and_can_be_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    await leases.begin(1, 2)
    leases.made[0].end(PeerLost("nobody listens"))
    await until(lambda: not leases.made[0].is_running)
    assert "lease has ended lease=one/1~1: nobody listens" in caplog.text
    assert leases.made[1].is_running
    leases.open(OpenLease(1))
    await until(lambda: leases.made[-1].is_running)
    assert len(leases.made) == 3
    await soon(leases.close())


@pytest.mark.parametrize("loss", [StageLost("the stage is lost"), StageHung("a step hangs")])
async def test_loss_of_the_stage_of_a_lease_ends_the_whole_node(loss: StageLost) -> None:
    leases = Leases()
    await leases.begin(1, 2)
    watching = asyncio.create_task(leases.run())
    leases.made[0].end(PeerLost("nobody listens"))
    await until(lambda: not leases.made[0].is_running)
    assert not watching.done(), "the loss of a head is nobody else's"
    leases.made[1].end(loss)
    with pytest.raises(type(loss), match=loss.message):
        await soon(watching)
    await soon(leases.close())
