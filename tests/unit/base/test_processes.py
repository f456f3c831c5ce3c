from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.base.processes import kill_process
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
