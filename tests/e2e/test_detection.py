"""How soon a pipeline notices that a stage is lost, and what it does not take for a loss.

The transport's own timeout is `SLOW_S`, as over a slow network: what is noticed sooner is noticed by core.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process_pipeline import TOY, Pipeline, running, serving
from tests.support.zmq_nodes import stretched

SLOW_S = 20.0
SOON_S = 10.0
"""What is noticed within this was noticed by heartbeats that were measured, even on a busy machine."""
BUSY_S = 6.0
SPIN = "while True: pass"


async def warm_up(pipeline: Pipeline) -> None:
    """Have the head measure the heartbeats of its stages."""
    await pipeline.check()
    await asyncio.sleep(2.0)


async def check_loss(pipeline: Pipeline, begun: float) -> None:
    """Check that the loss of stage 1 is noticed, and the pipeline answers as before."""
    await pipeline.until("starting")
    assert time.monotonic() - begun < SOON_S
    assert "stage 1 of 3, on node 'worker/1', is lost: " in pipeline.reasons[0]
    await pipeline.until("ready")
    await pipeline.check()
    assert len(pipeline.reasons) == 1


async def ask_while(pipeline: Pipeline, seconds: float) -> None:
    """Ask for as long as that, and check every answer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tokens, _ = await pipeline.ask([1], 40)
        assert tokens == TOY.continuation([1], 40)


@contextmanager
def saturated() -> Iterator[None]:
    """Keep every core busy with twice as many processes."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


async def test_killed_stage_is_noticed_by_its_connection(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path, timeout_s=SLOW_S)) as pipeline:
        await pipeline.check()
        os.kill(pipeline.pids[1], signal.SIGKILL)
        await check_loss(pipeline, time.monotonic())
        assert pipeline.reasons[0].endswith("its process was ended by SIGKILL")


async def test_stopped_stage_is_noticed_long_before_the_timeout_of_the_transport(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path, timeout_s=SLOW_S)) as pipeline:
        await warm_up(pipeline)
        os.kill(pipeline.pids[1], signal.SIGSTOP)
        await check_loss(pipeline, time.monotonic())
        assert "no sign of life for " in pipeline.reasons[0]


@pytest.mark.usefixtures("with_keys")
async def test_half_open_link_is_noticed_long_before_the_timeout_of_the_transport(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, is_tcp=True, timeout_s=SLOW_S)
    await pipeline.registry.start()
    try:
        async with stretched(pipeline.registry.address) as wire:
            pipeline.addresses["worker/1"] = wire.address
            async with serving(pipeline):
                await warm_up(pipeline)
                wire.flows.clear()
                await check_loss(pipeline, time.monotonic())
                assert "no sign of life for " in pipeline.reasons[0]
    finally:
        await pipeline.registry.stop()


async def test_stage_whose_event_loop_is_blocked_is_not_lost(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path)) as pipeline:
        await warm_up(pipeline)
        asking = asyncio.create_task(pipeline.ask([1], 200))
        os.kill(pipeline.pids[1], signal.SIGUSR1)
        tokens, _ = await asking
        assert tokens == TOY.continuation([1], 200)
        assert pipeline.reasons == []


@pytest.mark.nightly
async def test_stages_on_a_saturated_machine_are_not_lost(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path, timeout_s=2.5)) as pipeline:
        await warm_up(pipeline)
        with saturated():
            await ask_while(pipeline, BUSY_S)
        assert pipeline.reasons == []
