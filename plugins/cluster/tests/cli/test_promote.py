from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from parallax_cluster.cli.promote import promote
from parallax_cluster.config.home import standby_file, term_file
from parallax_cluster.deploy.standby import StandbyRecord, find_standby
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.base.errors import ParallaxError

HOLD = """
import sys, signal
from filelock import FileLock
from parallax_cluster.config.home import standby_file
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
with FileLock(standby_file().with_suffix(".lock")):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    standby_file().parent.mkdir(parents=True)
    return tmp_path


@contextmanager
def standing_by(**changes: object) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the lock of a standby; it ends with 7 when it is to take over."""
    environment = {**os.environ}
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        record = StandbyRecord(pid=process.pid, address="tcp://first:9000", model="toy", term=3)
        standby_file().write_bytes(msgspec.json.encode(msgspec.structs.replace(record, **changes)))
        try:
            yield process
        finally:
            process.kill()


def test_without_a_standby_it_is_an_error_with_the_next_step() -> None:
    with pytest.raises(ParallaxError, match="no standby runs") as caught:
        promote()
    assert "parallax run --standby-of" in caught.value.hint
    standby_file().write_bytes(msgspec.json.encode(StandbyRecord(pid=1, address="x", model="toy")))
    assert find_standby() is None, "its process has ended"


def test_old_server_learns_how_it_serves_again() -> None:
    TermStore(term_file()).begin("toy")
    with pytest.raises(ParallaxError, match="no standby runs") as caught:
        promote(force=True)
    assert "`parallax run --new-term`" in caught.value.hint
    term_file().write_bytes(b"\0")
    with pytest.raises(ParallaxError, match="no standby runs"):
        promote()


def test_standby_takes_over_when_its_coordinator_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    with standing_by() as process:
        promote()
        assert process.wait(20) == 7
    assert "serves toy from now on, in term 4" in capsys.readouterr().out


def test_coordinator_that_still_answers_is_replaced_only_by_force() -> None:
    with standing_by(is_linked=True) as process:
        with pytest.raises(ParallaxError, match="the server at tcp://first:9000 still answers") as caught:
            promote()
        assert "--force" in caught.value.hint
        assert process.poll() is None
        promote(force=True)
        assert process.wait(20) == 7


def test_standby_that_is_accepted_no_more_is_not_promoted() -> None:
    with standing_by(is_accepted=False) as process:
        with pytest.raises(ParallaxError, match="does not accept this machine as a standby any more"):
            promote(force=True)
        assert process.poll() is None


def test_standby_that_has_heard_nothing_cannot_take_over() -> None:
    with standing_by(model="") as process:
        with pytest.raises(ParallaxError, match="has heard nothing yet"):
            promote(force=True)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
