from __future__ import annotations

import asyncio
import threading
import time

import pytest

from parallax_engines.loop_thread import LoopThread
from tests.unit.node.cluster import soon, until


def count_threads() -> int:
    return sum(thread.name == "kit" for thread in threading.enumerate())


async def test_work_runs_on_the_thread_and_its_result_comes_back() -> None:
    thread = LoopThread("kit")

    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert await soon(thread.run(work)) == "kit"
    thread.close()
    await until(lambda: not count_threads())


async def test_work_that_blocks_does_not_hold_up_the_owner() -> None:
    thread = LoopThread("kit")

    async def work() -> None:
        time.sleep(0.2)  # noqa: ASYNC251 -- it is to block

    running = thread.run(work)
    turns = 0
    while not running.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert turns > 5
    thread.close()


async def test_errors_come_back_and_an_exit_does_not_end_the_process() -> None:
    thread = LoopThread("kit")

    async def fail() -> None:
        raise ValueError("x")

    async def leave() -> None:
        raise SystemExit(4)

    with pytest.raises(ValueError, match="x"):
        await soon(thread.run(fail))
    with pytest.raises(RuntimeError, match="it wanted to end the process: SystemExit: 4"):
        await soon(thread.run(leave))
    thread.close()
    await until(lambda: not count_threads())


async def test_close_cancels_what_runs_and_ends_the_thread() -> None:
    thread = LoopThread("kit")
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = thread.run(work)
    await asyncio.sleep(0.01)
    thread.close()
    thread.close()
    await until(lambda: cancelled.is_set() and not count_threads())
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], asyncio.CancelledError)
    thread.post(cancelled.clear)
    await asyncio.sleep(0.01)
    assert cancelled.is_set()


async def test_second_close_does_not_end_the_loop_before_its_work() -> None:
    thread, entered, ended = LoopThread("kit"), threading.Event(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            entered.set()
            await asyncio.sleep(0.05)
            ended.set()

    running = thread.run(work)
    await asyncio.sleep(0.01)
    thread.close()
    await until(entered.is_set)
    thread.close()
    await until(lambda: not count_threads())
    assert ended.is_set()
    await asyncio.gather(running, return_exceptions=True)


async def test_calls_are_posted_both_ways() -> None:
    thread, heard = LoopThread("kit"), asyncio.Event()
    thread.post(thread.post_back, heard.set)
    await soon(heard.wait())
    thread.close()
