from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from parallax_cluster.node.worker.further import MOST_FURTHER, FurtherNodes
from parallax_cluster.wire.further import EndNode, StartNode
from tests.support.process_pipeline import is_alive
from tests.unit.node.cluster import soon, until

NOTE = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + '.left', 'a').write(sys.argv[2] + ' '), os._exit(0)))
open(sys.argv[1], 'a').write(f'{sys.argv[2]}={os.getpid()} ')
sys.stdin.read()
"""


class Notes:
    """What processes have written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes"
        self.path.touch()

    def make_command(self, node: str) -> list[str]:
        return [sys.executable, "-c", NOTE, str(self.path), node]

    def pids(self, node: str) -> list[int]:
        return [int(pid) for name, pid in (word.split("=") for word in self.path.read_text().split()) if name == node]

    @property
    def left(self) -> str:
        return Path(f"{self.path}.left").read_text()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


async def test_node_runs_until_it_is_to_end(notes: Notes) -> None:
    further = FurtherNodes("one/1", notes.make_command)
    for _ in range(2):  # the second message means nothing
        further.start(StartNode(3))
    assert further.is_needed
    await until(lambda: len(notes.pids("one/1+3")) == 1)
    os.kill(notes.pids("one/1+3")[0], signal.SIGKILL)
    await until(lambda: len(notes.pids("one/1+3")) == 2)
    further.end(EndNode(3))
    further.end(EndNode(4))
    await until(lambda: not is_alive(notes.pids("one/1+3")[1]) and not further.is_needed)
    await soon(further.close())


async def test_all_nodes_end_when_the_head_is_gone(notes: Notes) -> None:
    further = FurtherNodes("one/1", notes.make_command)
    for number in (1, 2):
        further.start(StartNode(number))
    await until(lambda: bool(notes.pids("one/1+1") and notes.pids("one/1+2")))
    await soon(further.close())
    assert not any(is_alive(pid) for number in (1, 2) for pid in notes.pids(f"one/1+{number}"))


async def test_nodes_that_are_asked_to_leave_are_not_started_again(notes: Notes) -> None:
    further = FurtherNodes("one/1", notes.make_command)
    further.start(StartNode(1))
    await until(lambda: bool(notes.pids("one/1+1")))
    await soon(further.leave())
    assert notes.left == "one/1+1 "
    assert len(notes.pids("one/1+1")) == 1
    assert not further.is_needed


async def test_head_cannot_have_a_node_start_any_number_of_processes(notes: Notes) -> None:
    started: list[str] = []

    def make_command(node: str) -> list[str]:
        started.append(node)
        return [sys.executable, "-c", "import sys; sys.stdin.read()"]

    further = FurtherNodes("one/1", make_command)
    for number in range(1, MOST_FURTHER + 5):
        further.start(StartNode(number))
    await until(lambda: len(started) >= MOST_FURTHER)
    await asyncio.sleep(0.05)
    assert len(started) == MOST_FURTHER
    await soon(further.close())
    none = FurtherNodes("one/1")
    none.start(StartNode(1))
    assert not none.is_needed
