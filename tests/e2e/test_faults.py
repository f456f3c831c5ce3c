"""Faults of worker processes at once and in a row, and nodes that leave: no request fails, no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parallax_core.api import Finish
from tests.support.process_pipeline import TOY, Pipeline, is_alive, running

LENGTH = 200
CLIENTS = 4


@dataclass
class Clients:
    """Clients of a pipeline that send requests until they are told to stop, and check every answer."""

    pipeline: Pipeline
    is_over: bool = False
    finishes: list[Finish] = field(default_factory=list)

    async def work(self, prompt: Sequence[int]) -> None:
        while not self.is_over:
            tokens, finish = await self.pipeline.ask_when_ready(prompt, LENGTH)
            assert tokens == TOY.continuation(prompt, LENGTH), finish.message
            self.finishes.append(finish)


@asynccontextmanager
async def loaded(pipeline: Pipeline) -> AsyncIterator[Clients]:
    """Run a pipeline under load; in the end every answer must be right, every page free, and no process left."""
    pids: set[int] = set()

    async def note_pids() -> None:
        while True:
            pids.update(pipeline.supervisor.pids)
            await asyncio.sleep(0.02)

    async with running(pipeline):
        noting, clients = asyncio.create_task(note_pids()), Clients(pipeline)
        working = [asyncio.create_task(clients.work([number])) for number in range(CLIENTS)]
        await pipeline.until_tokens()
        yield clients
        await pipeline.until("ready")
        clients.is_over = True
        await asyncio.gather(*working)
        await pipeline.check_pages()
        noting.cancel()
    assert not [pid for pid in pids if is_alive(pid)]


async def test_workers_that_are_killed_at_once_or_during_a_replay_are_replaced(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    async with loaded(pipeline):
        first = pipeline.pids
        for stage in (0, 2):
            os.kill(first[stage], signal.SIGKILL)
        await pipeline.until_lost(1)
        os.kill(first[1], signal.SIGKILL)  # the pipeline is being built anew
        await pipeline.until("ready")
        os.kill(pipeline.pids[2], signal.SIGKILL)  # the requests are being computed again
        await pipeline.until_lost(2)
        await pipeline.until("ready")
        assert not set(first) & set(pipeline.pids)


@pytest.mark.nightly
async def test_stage_that_is_lost_ten_times_is_replaced_each_time(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, sizes=(1, 2), spares=1)
    async with loaded(pipeline):
        for number in range(10):
            await pipeline.until_tokens()
            os.kill(pipeline.pids[1], signal.SIGKILL)
            await pipeline.until_lost(number + 1)
            await pipeline.until("ready")
    assert len(pipeline.reasons) == 10


async def test_worker_that_gets_sigterm_is_replaced_by_a_spare_without_a_loss(tmp_path: Path) -> None:
    stage, pipeline = 1, Pipeline(tmp_path, sizes=(1, 2), spares=2)
    async with loaded(pipeline) as clients:
        await pipeline.until_spared()
        pid, spares = pipeline.pids[stage], pipeline.spare_pids
        os.kill(pid, signal.SIGTERM)
        async with asyncio.timeout(10):
            while pipeline.pids[stage] == pid or is_alive(pid):
                assert pipeline.engine.health().state == "ready"
                await asyncio.sleep(0.005)
        assert pipeline.pids[stage] in spares
        num_answers = len(clients.finishes)
        await pipeline.until_spared()
        await pipeline.until_tokens()
    assert pipeline.reasons == []
    assert len(clients.finishes) > num_answers


async def test_worker_that_gets_sigterm_without_a_spare_is_started_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, sizes=(1, 2))
    async with loaded(pipeline):
        pid = pipeline.pids[1]
        os.kill(pid, signal.SIGTERM)
        await pipeline.until_lost(1)
        await pipeline.until("ready")
        assert not is_alive(pid)
    assert (
        "stage 1 of 2, on node 'worker/1', is lost: it leaves, and no other node has its layers" in pipeline.reasons[0]
    )


@pytest.mark.parametrize(
    "victim", [pytest.param(each, marks=pytest.mark.nightly) for each in ("neighbour", "leaver", "spare")]
)
async def test_worker_that_is_killed_while_another_leaves_is_replaced(tmp_path: Path, victim: str) -> None:
    pipeline = Pipeline(tmp_path, sizes=(1, 2), spares=2)
    async with loaded(pipeline):
        await pipeline.until_spared()
        victims = {"leaver": pipeline.pids[1], "neighbour": pipeline.pids[0], "spare": pipeline.spare_pids[1]}
        leaver, killed = pipeline.pids[1], victims[victim]
        os.kill(leaver, signal.SIGTERM)
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(20):
            while any(is_alive(pid) or pid in pipeline.pids for pid in (leaver, killed)):  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.01)
        await pipeline.until("ready")
        await pipeline.until_tokens()
