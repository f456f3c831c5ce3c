from __future__ import annotations

import asyncio
import sys

import pytest

from parallax_core.base.processes import kill_process

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
