"""Worker processes of a coordinator one of which becomes slow, as the device for which it is taken would."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.crowd import ClientPool, finish_clients
from tests.support.paced_cluster import PacedCluster, running

PATIENCE_S = 60.0
CLIENTS = 4
POWER = 4e12


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.01)


def list_layers(cluster: PacedCluster) -> dict[str, int]:
    """Return the number of layers of each node with a stage of a pipeline that is ready."""
    return {
        stage.node: len(stage.layers)
        for status in cluster.router.describe()
        for stage in status.stages
        if stage.layers is not None and status.health.state == "ready"
    }


@pytest.mark.nightly
async def test_layers_leave_a_slow_node_and_the_streams_stay_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster, finishes = PacedCluster(tmp_path, CLIENTS), list[str]()
    pool = ClientPool(cluster.router, random.Random(5), lambda finish: finishes.append(finish.message))
    async with running(cluster, [(2.5, POWER), (2.5, POWER), (2.5, POWER / 1.5)]):
        await wait_for(lambda: len(cluster.registry.joined) == len(cluster.fleet.pids))
        await wait_for(lambda: cluster.is_converged and cluster.coordinator.move is None)
        before = list_layers(cluster)
        victim = max(before, key=lambda node: before[node])
        clients = [asyncio.create_task(pool.send_requests()) for _ in range(CLIENTS)]
        await pool.wait_answer()
        cluster.fleet.slow_down(victim)
        await wait_for(lambda: (move := cluster.coordinator.move) is not None and f"'{victim}' takes" in move.reason)
        move = cluster.coordinator.move
        assert move is not None
        assert list_layers(cluster) == before, "it is said before it is done"
        assert await cluster.converge() is not None
        after = list_layers(cluster)
        assert after.get(victim, 0) < before[victim]
        assert set(move.loads) <= set(after)
        assert sum(move.loads.values()) > 0
        await pool.wait_answer()
        assert not await finish_clients(clients, pool)
    assert not finishes
    assert all(sent.is_right for sent in pool.sent)
    assert any(record.message.startswith("layers move bytes=") for record in caplog.records)
    assert {status.num_losses for status in cluster.router.describe()} == {0}
