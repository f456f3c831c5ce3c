from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec
import pytest

from parallax_cluster.deploy.measure import MeasurePlan, main, make_process
from parallax_cluster.node.profile.device import MachineProfile
from parallax_cluster.node.profile.measuring import IMPORTED, MeasuringProcess
from parallax_cluster.node.profile.speed_cache import FOLDER


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return tmp_path


async def start(process: MeasuringProcess) -> Process:
    return await asyncio.create_subprocess_exec(*process.command, stdin=PIPE, stdout=PIPE, start_new_session=True)


async def test_process_measures_a_real_backend_and_prints_what_it_finds(home: Path) -> None:
    process = make_process(MeasurePlan(backend="torch", options=("weights=int8",)))
    child = await start(process)
    assert child.stdout is not None
    output = await child.stdout.read()
    await child.wait()
    assert child.returncode == 0
    word, _, rest = output.partition(b"\n")
    assert word + b"\n" == IMPORTED
    machine = msgspec.json.decode(rest, type=MachineProfile)
    assert machine.backend == "torch"
    assert machine.device.is_measured
    [file] = (home / "cache" / FOLDER).glob("*.json")
    assert "weights=int8" in msgspec.json.decode(file.read_bytes())["key"], "the options count"


async def test_process_ends_with_the_worker_that_started_it() -> None:
    child = await start(make_process(MeasurePlan(backend="torch")))
    assert child.stdin is not None
    child.stdin.close()
    assert await child.wait() == -signal.SIGKILL


def test_backend_that_is_not_there_is_a_message(caplog: pytest.LogCaptureFixture) -> None:
    assert main(["measure", msgspec.json.encode(MeasurePlan(backend="nothing")).decode()]) == 1
    assert "device cannot be measured: no backend named 'nothing'" in caplog.text
