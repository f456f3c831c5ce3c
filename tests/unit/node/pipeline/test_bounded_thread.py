from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading

import pytest

from parallax_core.api import BackendFailed
from parallax_core.node.pipeline import bounded_thread
from parallax_core.node.pipeline.bounded_thread import MOST_STUCK, BoundedThread
from parallax_core.node.worker.thread import StageThread


async def test_calls_give_their_results_and_errors() -> None:
    thread = BoundedThread("test-bounded", "counting", 20.0)
    assert await thread.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 / 0)
    assert await thread.call(lambda: threading.current_thread().name) == "test-bounded"
    thread.close()


async def test_call_that_hangs_is_given_up_with_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    may_end = threading.Event()
    thread = BoundedThread("test-bounded", "counting", 0.05)
    hanging = thread.call(may_end.wait)
    with pytest.raises(BackendFailed, match=r"counting takes more than 0\.05 s"):
        await hanging
    assert "thread test-bounded hangs" in caplog.text
    assert "in wait" in caplog.text
    assert await thread.call(lambda: 5) == 5
    may_end.set()
    thread.close()


async def test_no_more_than_a_few_threads_are_given_up_at_the_same_time() -> None:
    may_end = threading.Event()
    thread = BoundedThread("test-bounded", "counting", 0.01)
    for _ in range(MOST_STUCK):
        with pytest.raises(BackendFailed, match="counting takes more than"):
            await thread.call(may_end.wait)
    with pytest.raises(BackendFailed, match=f"counting hangs: {MOST_STUCK} threads were given up"):
        await thread.call(lambda: 5)
    may_end.set()
    while True:  # until the calls have returned
        await asyncio.sleep(0.001)
        with contextlib.suppress(BackendFailed):
            assert await thread.call(lambda: 5) == 5
            break
    thread.close()


async def test_call_in_the_background_that_waits_for_a_processor_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine gives such a thread a processor for a thousandth of the time."""
    if sys.platform != "linux":
        return  # threads have no policies
    seconds, may_end = [0.0], threading.Event()
    monkeypatch.setattr(StageThread, "find_seconds", lambda _: seconds[0])
    thread = BoundedThread("test-bounded", "counting", 0.01, is_background=True)
    waiting = thread.call(may_end.wait)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    may_end.set()
    assert await waiting
    may_end.clear()
    hanging = thread.call(may_end.wait)
    seconds[0] = 0.01
    with pytest.raises(BackendFailed, match="counting takes more than"):
        await hanging
    monkeypatch.setattr(bounded_thread, "MOST_WAIT_S", 0.02)
    with pytest.raises(BackendFailed, match="counting takes more than"):
        await thread.call(may_end.wait)
    may_end.set()
    thread.close()


async def test_thread_in_the_background_is_preempted_by_all_others() -> None:
    def read_policy() -> int:
        return os.sched_getscheduler(threading.get_native_id()) if sys.platform == "linux" else 0

    usual = BoundedThread("test-bounded", "counting", 20.0)
    background = BoundedThread("test-bounded", "counting", 20.0, is_background=True)
    policies = await asyncio.gather(usual.call(read_policy), background.call(read_policy))
    assert list(policies) == [read_policy(), os.SCHED_IDLE if sys.platform == "linux" else 0]
    usual.close()
    background.close()
