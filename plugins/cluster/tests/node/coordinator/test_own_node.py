from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from parallax_cluster.node.coordinator.own_node import running_worker
from parallax_core.node.backoff import WAITS_S
from parallax_core.node.membership.supervisor import WorkerSupervisor
from tests.support.process_pipeline import is_alive
from tests.unit.node.cluster import until

NOTE = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()} '); sys.stdin.read()"


async def test_worker_that_ends_is_started_again_and_ends_with_the_coordinator(tmp_path: Path) -> None:
    notes = tmp_path / "pids"
    notes.touch()
    supervisor = WorkerSupervisor(lambda node: [sys.executable, "-c", NOTE, str(notes), node])

    def pids() -> list[int]:
        return [int(word) for word in notes.read_text().split()]

    async with running_worker(supervisor):
        await until(lambda: len(pids()) == 1)
        os.kill(pids()[0], signal.SIGKILL)
        await until(lambda: len(pids()) == 2)
        await until(lambda: list(supervisor.pids) == pids()[1:])
    assert not supervisor.pids
    assert not is_alive(pids()[1])


async def test_worker_that_cannot_be_started_is_tried_again_after_a_while() -> None:
    asked: list[float] = []

    def make_command(node: str) -> list[str]:
        asked.append(time.monotonic())
        return ["/nonexistent/python", node]

    supervisor = WorkerSupervisor(make_command)
    async with running_worker(supervisor):
        await until(lambda: len(asked) >= 2)
        assert supervisor.pids == ()
    assert asked[1] - asked[0] >= WAITS_S[1]
