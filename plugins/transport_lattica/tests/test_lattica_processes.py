"""Processes that die or hang: the one that listens, those of links, and those of other nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.api import Frame, PeerLost
from parallax_transport_lattica import listener as listener_module
from parallax_transport_lattica.transport import LatticaTransport
from tests.support.lattica_nodes import LOOPBACK, join, noted_processes, plan_node, started
from tests.support.zmq_nodes import eventually


def find_listening(transport: LatticaTransport) -> int:
    """Return the process id of the peer that listens; 0: there is none at the moment."""
    assert transport.listener
    return transport.listener.process.pid if transport.listener.process else 0


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in which peers keep their files."""
    return list(folder.glob("parallax-lattica-*"))


async def check_passage(near: LatticaTransport, far: LatticaTransport) -> None:
    here, there = await join(near, far)
    await here.send(Frame(b"x"))
    assert (await there.receive()).header == b"x"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_listening_process_is_replaced_at_the_same_address(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "SILENCE_S", 2.0)
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        here, there = await join(near, far)
        before, address = find_listening(far), far.address
        os.kill(before, number)
        await eventually(lambda: find_listening(far) not in {0, before}, 30)
        for link in (here, there):
            with pytest.raises(PeerLost):
                await asyncio.wait_for(link.receive(), 20)
        assert far.address == address
        assert not is_running(before)
        await check_passage(near, far)
    assert sum("restarting lattica" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_process_of_a_link_takes_only_that_link_along(number: signal.Signals) -> None:
    plan = plan_node("near", timeout_s=1.5)
    async with started(plan_node("far", LOOPBACK, timeout_s=1.5)) as far, started(plan) as near:
        with noted_processes() as processes:
            here, there = await join(near, far)
        [pid] = (process.pid for process in processes)
        kept, kept_there = await join(near, far)
        os.kill(pid, number)
        for link in (here, there):
            with pytest.raises(PeerLost):
                await asyncio.wait_for(link.receive(), 20)
        await kept.send(Frame(b"x"))
        assert (await kept_there.receive()).header == b"x"
        await eventually(lambda: not is_running(pid), 10)


async def test_link_that_is_closed_leaves_no_process() -> None:
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        with noted_processes() as processes:
            here, _ = await join(near, far)
        [pid] = (process.pid for process in processes)
        await here.close()
        await eventually(lambda: not is_running(pid), 10)


def test_processes_end_with_a_node_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from tests.support.lattica_nodes import LOOPBACK, join, plan_node, started\n"
        "async def main():\n"
        "    async with started(plan_node('far', LOOPBACK)) as far, started(plan_node('near')) as near:\n"
        "        await join(near, far)\n"
        "        pids = [far.listener.process.pid, *(each.pid for each in near._callers)]\n"
        "        print(*pids, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout
        pids = [int(each) for each in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        process.kill()
        process.wait()
    asyncio.run(eventually(lambda: not any(map(is_running, pids)), 20))
    assert list_folders(tmp_path) == []


async def test_stopped_node_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with started(plan_node("far", LOOPBACK)) as far, started(plan_node("near")) as near:
        await check_passage(near, far)
        assert len(list_folders(tmp_path)) == 2
    assert list_folders(tmp_path) == []
