from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from parallax_client.server_url import find_url
from parallax_cluster.config.home import workers_folder
from parallax_cluster.deploy.worker_record import RecordService, WorkerRecord, find_workers, recorded
from parallax_core.api.cli import DEFAULT_URL

HOLD = """
import sys
from parallax_cluster.deploy.worker_record import recorded
with recorded("mini/7", "tcp://10.0.0.5:9000"):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return tmp_path


def start() -> subprocess.Popen[str]:
    """Start a process that keeps a record until its standard input ends."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_worker_is_found_while_it_runs() -> None:
    assert find_workers() == []
    process = start()
    [found] = find_workers()
    assert (found.node, found.pid, found.connect) == ("mini/7", process.pid, "tcp://10.0.0.5:9000")
    assert found.wait_end(0) is False
    process.communicate("")
    assert found.wait_end(10)
    assert find_workers() == []
    assert list(workers_folder().iterdir()) == []


def test_record_of_a_process_that_was_killed_is_deleted() -> None:
    process = start()
    process.kill()
    process.communicate()
    assert len(list(workers_folder().glob("*.json"))) == 1
    assert find_workers() == []
    assert list(workers_folder().iterdir()) == []


def test_files_that_are_no_records_of_this_machine_are_left_alone() -> None:
    folder = workers_folder()
    folder.mkdir()
    (folder / "notes.json").write_text("{")
    other = WorkerRecord(node="mini/8", pid=os.getpid(), host="elsewhere", connect="tcp://10.0.0.5:9000")
    other.path.write_bytes(msgspec.json.encode(other))
    (folder / "all.json").write_text('{"node": "x", "pid": -1, "host": "here", "connect": ""}')
    assert find_workers() == []
    assert len(list(folder.iterdir())) == 3


def test_worker_runs_without_a_record_that_cannot_be_written(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "workers").write_text("in the way")
    with caplog.at_level(logging.WARNING), recorded("mini/7", "tcp://10.0.0.5:9000"):
        assert "`parallax cluster leave` will not find this worker" in caplog.text


def test_server_that_this_machine_has_joined_comes_before_a_local_one() -> None:
    with recorded("mini/7", "tcp://10.0.0.5:9000", "http://127.0.0.1:43210/v1"):
        assert find_url(None) == "http://127.0.0.1:43210/v1"
        assert find_url("http://studio:8000/v1") == "http://studio:8000/v1"
    with recorded("mini/7", "tcp://10.0.0.5:9000"):
        assert find_url(None) == DEFAULT_URL


async def test_node_is_found_until_its_services_close() -> None:
    service = RecordService("mini/7", "tcp://10.0.0.5:9000", "")
    assert [worker.node for worker in find_workers()] == ["mini/7"]
    await service.close()
    await service.close()
    assert find_workers() == []
