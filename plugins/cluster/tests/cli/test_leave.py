from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallax_cluster.cli.leave import app
from parallax_core.api import ParallaxError, UnknownName

RECORDED = """
import signal, sys
from parallax_cluster.deploy.worker_record import recorded
with recorded(sys.argv[1], "tcp://10.0.0.5:9000"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print(flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))


def start(node: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", RECORDED, node], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def leave(*names: str) -> str:
    result = CliRunner().invoke(app, list(names), catch_exceptions=False, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_workers_are_told_to_leave_and_waited_for() -> None:
    processes = [start("mini/1"), start("mini/2")]
    assert leave("mini/2") == "mini/2 leaves tcp://10.0.0.5:9000\nmini/2 has left\n"
    assert (processes[0].poll(), processes[1].wait(10)) == (None, 7)
    assert leave() == "mini/1 leaves tcp://10.0.0.5:9000\nmini/1 has left\n"
    assert processes[0].wait(10) == 7
    for process in processes:
        process.communicate()


def test_worker_that_does_not_run_is_an_error_that_names_those_that_do() -> None:
    with pytest.raises(ParallaxError, match="no worker runs here"):
        leave()
    process = start("mini/1")
    with pytest.raises(UnknownName, match="no worker called 'mini/9' runs here") as caught:
        leave("mini/9")
    assert caught.value.hint == "these run: mini/1"
    assert process.poll() is None
    leave()
    process.communicate()
