from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest

from parallax_cluster.node.profile import measuring
from parallax_cluster.node.profile.measuring import MeasuringProcess
from plugins.cluster.tests.node.profile.test_report import MACHINE

IMPORT = "print('imported', flush=True)"


def run_python(*lines: str) -> MeasuringProcess:
    return MeasuringProcess([sys.executable, "-c", "; ".join(lines)])


async def test_process_says_what_it_has_found() -> None:
    process = run_python(IMPORT, f"print({msgspec.json.encode(MACHINE).decode()!r})")
    await process.run()
    assert (process.is_done, process.machine) == (True, MACHINE)


async def test_process_is_interrupted_once_it_has_imported() -> None:
    process = run_python("import time", "time.sleep(0.2)", IMPORT, "time.sleep(60)")
    running = asyncio.create_task(process.run())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await process.interrupt()
        await running
    assert not process.is_done, "it is measured later"


async def test_process_that_fails_is_not_tried_again() -> None:
    for lines in (["raise SystemExit(1)"], [IMPORT, "raise SystemExit(1)"]):
        process = run_python(*lines)
        await process.run()
        assert (process.is_done, process.machine) == (True, None)


async def test_process_that_cannot_be_started_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    process = MeasuringProcess(["/nowhere/python"])
    await process.run()
    assert process.is_done
    assert "cannot be measured" in caplog.text


async def test_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(measuring, "MEASURE_S", 0.3)
    process = run_python("import time", IMPORT, "time.sleep(60)")
    async with asyncio.timeout(30):
        await process.run()
    assert process.is_done
    assert "took longer than" in caplog.text


async def test_interrupt_without_a_process_does_nothing() -> None:
    await run_python(IMPORT).interrupt()
