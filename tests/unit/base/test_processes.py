from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.processes import ChildProcess, kill_process
from tests.unit.node.cluster import until

NUM_TRIES = 30
"""One in five met the race when the process was killed by `Process.kill`."""


async def test_process_that_ends_as_it_is_killed_keeps_its_exit_code(caplog: pytest.LogCaptureFixture) -> None:
    codes = set()
    for _ in range(NUM_TRIES):
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "exit 7", stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.read()
        kill_process(process)
        codes.add(await process.wait())
    assert codes <= {7, -9}
    assert "Unknown child process" not in caplog.text


async def test_running_process_is_killed_and_one_that_has_ended_is_left_alone() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    kill_process(process)
    assert await process.wait() == -9
    kill_process(process)


FAMILY = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']); "
    "open(sys.argv[1] + '.new', 'w').write(str(child.pid)); import os; os.rename(sys.argv[1] + '.new', sys.argv[1]); "
)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended after the file was opened
        return True


def test_child_ends_with_its_parent_that_has_no_time_to_see_to_it() -> None:
    child = "from parallax_core.base.processes import end_with_parent; end_with_parent(); import signal; signal.pause()"
    parent = (
        "import asyncio, os, sys\n"
        "from parallax_core.base.processes import ChildProcess\n"
        "async def main():\n"
        f"    child = await ChildProcess.start([sys.executable, '-c', {child!r}], os.environ)\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not has_ended(pid)
        process.kill()
    asyncio.run(until(lambda: has_ended(pid)))


@pytest.mark.parametrize("how", ["end_with_parent()", "import os; end_children_of_orphan(os.getppid() + 1)"])
def test_child_processes_end_where_the_supervisor_is_gone(how: str, tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = (
        "from parallax_core.base.processes import end_children_of_orphan, end_with_parent; "
        f"{FAMILY}{how}; import time; time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(note)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        asyncio.run(until(note.exists))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == -signal.SIGKILL
    asyncio.run(until(lambda: has_ended(int(note.read_text()))))


def test_process_that_leads_no_group_kills_no_other() -> None:
    begin = "from parallax_core.base.processes import end_with_parent; end_with_parent(); "
    code = f"{begin}import time; time.sleep(9)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


async def start(code: str, **given: Any) -> ChildProcess:
    return await ChildProcess.start([sys.executable, "-S", "-c", code], os.environ, **given)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(0)", "its process ended with exit code 0"),
        ("raise SystemExit(3)", "its process ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 15)", "its process was ended by SIGTERM"),
        ("import os; os.kill(os.getpid(), 40)", "its process was ended by signal 40"),
    ],
)
async def test_end_of_a_process_is_explained(code: str, reason: str) -> None:
    child = await start(f"import sys; sys.stdin.read(); {code}")
    assert (child.is_running, child.explain()) == (True, None)
    child.stdin.close()
    await child.wait()
    assert (child.is_running, child.explain()) == (False, reason)


async def test_process_is_told_to_end_before_it_is_killed() -> None:
    child = await start("import sys; sys.stdin.read(); sys.exit(5)")
    assert await child.end(10, 10)
    assert child.explain() == "its process ended with exit code 5"
    deaf = await start("print('up', flush=True); import signal; signal.pause()", reads=True)
    assert await deaf.stdout.readline() == b"up\n"
    assert await deaf.end(0.01, 10)
    assert deaf.explain() == "its process was ended by SIGKILL"
    assert await deaf.kill(0.01), "it has ended already"


async def test_process_is_killed_with_its_child_processes_also_when_it_has_ended(tmp_path: Path) -> None:
    for number, rest in enumerate(("import time; time.sleep(60)", "sys.exit(0)")):
        note = tmp_path / str(number)
        command = [sys.executable, "-c", FAMILY + rest, str(note)]
        child = await ChildProcess.start(command, os.environ)
        await until(note.exists)
        if number:
            await child.wait()
        assert await child.kill(10)
        await until(lambda note=note: has_ended(int(note.read_text())))  # type: ignore[misc]


async def test_errors_of_a_process_have_its_name_and_what_it_prints_is_read_or_dropped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for reads in (True, False):
        child = await start("import sys; print('said'); print('wrong', file=sys.stderr)", reads=reads, name="mini")
        said = await child.stdout.read() if reads else b"said\n"
        await child.wait()
        assert said == b"said\n"
        assert await child.end(10, 10)
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", "[mini] wrong\n")


async def test_line_up_to_the_limit_is_read() -> None:
    child = await start("print('x' * 99); print('x' * 200)", reads=True, line_bytes=100)
    assert len(await child.stdout.readline()) == 100
    with pytest.raises(ValueError, match="limit"):
        await child.stdout.readline()
    assert await child.end(10, 10)


def count_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("name", [None, "mini"])
async def test_program_that_is_not_there_leaves_nothing_open(name: str | None) -> None:
    before = count_open()
    with pytest.raises(FileNotFoundError):
        await ChildProcess.start(["/none/such"], os.environ, name=name)
    await until(lambda: count_open() <= before)
