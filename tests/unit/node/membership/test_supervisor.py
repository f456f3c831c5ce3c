from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from parallax_core.api import BackendFailed
from parallax_core.base import processes
from parallax_core.base.processes import ChildProcess
from parallax_core.node.membership import supervisor as module
from parallax_core.node.membership.supervisor import WorkerSupervisor
from tests.unit.node.cluster import soon, until

WAIT = "import sys; sys.stdin.read()"
STUBBORN = "import signal; signal.pause()"
NO_PID = 2**22 + 1
"""Larger than the id of any process on Linux."""


def supervisor(code: str) -> WorkerSupervisor:
    return WorkerSupervisor(lambda node: [sys.executable, "-S", "-c", code, node])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_process_ends_when_it_is_told_to() -> None:
    here = supervisor(WAIT)
    await here.restart("a")
    [pid] = here.pids
    await soon(here.end("a"))
    assert not is_there(pid)
    await here.end("a")
    assert here.pids == ()


async def test_process_that_does_not_listen_is_killed() -> None:
    here = supervisor(STUBBORN)
    await here.restart("a")
    [pid] = here.pids
    await soon(here.end("a"))
    assert not is_there(pid)


async def test_worker_does_not_get_the_keys_of_the_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", "secret")
    monkeypatch.setenv("MY_OWN", "x")
    here = supervisor("import os; os.write(2, b'%d %d' % ('PARALLAX_API_KEY' in os.environ, 'MY_OWN' in os.environ))")
    await here.restart("a")
    await soon(here.wait_end("a"))
    await here.kill("a")
    assert capsys.readouterr().err == "[a] 0 1\n"


class Immortal:
    """A process that even SIGKILL does not end, as while it waits for a device."""

    pid, returncode = NO_PID, None

    class stdin:  # noqa: N801
        @staticmethod
        def close() -> None:
            """There is nobody who would notice."""

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0


@pytest.mark.parametrize("how", ["restart", "kill", "end"])
async def test_process_that_cannot_be_killed_is_not_waited_for(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("END_S", "KILL_S", "GONE_S"):
        monkeypatch.setattr(module, name, 0.02)
    killed: list[object] = []
    monkeypatch.setattr(processes, "kill_process", killed.append)
    here, immortal = supervisor(WAIT), Immortal()

    async def start(*_: object, **__: object) -> ChildProcess:
        return ChildProcess(immortal)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ChildProcess, "start", start)
        await here.restart("a")
    await soon(getattr(here, how)("a"))
    assert killed == [immortal]
    assert f"worker was killed and is still there after 0.02 s pid={NO_PID}" in caplog.text
    assert NO_PID not in here.pids
    await here.end("a")


async def test_end_of_a_process_that_is_not_there_is_at_once() -> None:
    assert await soon(supervisor(WAIT).wait_end("nobody")) == "its process is gone"


async def test_stopped_process_is_killed_and_replaced() -> None:
    here = supervisor(WAIT)
    await here.restart("a")
    [old] = here.pids
    os.kill(old, signal.SIGSTOP)
    await soon(here.restart("a"))
    assert not is_there(old)
    assert here.pids != (old,)
    await here.end("a")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(7)", "its process ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 11)", "its process was ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "its process was ended by signal 40"),
    ],
)
async def test_end_of_a_process_is_put_in_words(code: str, said: str) -> None:
    here = supervisor(code)
    await here.restart("a")
    assert await soon(here.wait_end("a")) == said
    assert await here.explain("a") == said
    assert await here.explain("b") is None
    await here.end("a")


async def test_process_that_runs_explains_nothing() -> None:
    here = supervisor(WAIT)
    await here.restart("a")
    assert await here.explain("a") is None
    await here.end("a")


async def test_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "python"
    here = WorkerSupervisor(lambda _: [str(path)])
    with pytest.raises(BackendFailed, match=f"the worker a cannot be started with {path}: No such file"):
        await here.restart("a")
    path.touch()
    with pytest.raises(BackendFailed, match="Permission denied"):
        await here.restart("a")
    assert here.pids == ()


FAMILY = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']); "
    "open(sys.argv[1] + '.new', 'w').write(str(child.pid)); import os; os.rename(sys.argv[1] + '.new', sys.argv[1]); "
)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended after the file was opened
        return True


@pytest.mark.parametrize("how", ["restart", "kill", "end"])
@pytest.mark.parametrize("code", [WAIT, STUBBORN, "raise SystemExit(3)"])
async def test_child_processes_end_with_their_worker(how: str, code: str, tmp_path: Path) -> None:
    note = tmp_path / "child"
    here = WorkerSupervisor(lambda _: [sys.executable, "-S", "-c", FAMILY + code, str(note)])
    await here.restart("a")
    await until(note.exists)
    child = int(note.read_text())
    assert not has_ended(child)
    await soon(getattr(here, how)("a"))
    await until(lambda: has_ended(child))
    await soon(here.end("a"))
