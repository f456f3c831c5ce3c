from __future__ import annotations

import asyncio
import os
import signal

import pytest

from parallax_core.api import PeerLost
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.stop import run_until_signal, serve_until_signal
from tests.unit.node.cluster import soon, until


class FakeSession(WorkerSession):
    """A session whose node a pipeline uses or not."""

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self.is_leaving = False

    @property
    def is_needed(self) -> bool:
        return self._is_needed

    def leave(self) -> None:
        self.is_leaving = True


def start(session: FakeSession, ending: asyncio.Event, drain_s: float = 60.0) -> asyncio.Task[None]:
    """Serve until ``ending`` is set."""

    async def serve() -> None:
        await ending.wait()

    return asyncio.create_task(serve_until_signal(session, serve(), drain_s))


async def send(number: signal.Signals = signal.SIGTERM) -> None:
    await asyncio.sleep(0)  # until the task handles signals
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_node_that_no_pipeline_uses_ends_at_once(number: signal.Signals) -> None:
    session = FakeSession(is_needed=False)
    task = start(session, asyncio.Event())
    await send(number)
    await soon(task)
    assert not session.is_leaving


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_node_that_a_pipeline_uses_ends_when_it_is_released(number: signal.Signals) -> None:
    session, ending = FakeSession(is_needed=True), asyncio.Event()
    task = start(session, ending)
    await send(number)
    await until(lambda: session.is_leaving)
    assert not task.done()
    ending.set()
    await soon(task)


async def test_second_signal_ends_it_at_once() -> None:
    session = FakeSession(is_needed=True)
    task = start(session, asyncio.Event())
    await send()
    await until(lambda: session.is_leaving)
    await send(signal.SIGINT)
    await soon(task)


@pytest.mark.parametrize("drain_s", [0.0, 0.01])
async def test_node_that_is_not_released_ends_after_its_time(drain_s: float) -> None:
    session = FakeSession(is_needed=True)
    task = start(session, asyncio.Event(), drain_s)
    await send()
    await soon(task)
    assert session.is_leaving == bool(drain_s)


async def test_head_that_is_lost_is_an_error_unless_the_node_leaves() -> None:
    session, losing = FakeSession(is_needed=True), asyncio.Event()

    async def serve() -> None:
        await losing.wait()
        raise PeerLost("the head is gone")

    task = asyncio.create_task(serve_until_signal(session, serve(), 60.0))
    await send()
    await until(lambda: session.is_leaving)
    losing.set()
    await soon(task)
    session.is_leaving = False
    with pytest.raises(PeerLost, match="the head is gone"):
        await soon(serve_until_signal(session, serve(), 60.0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_what_runs_until_then(number: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, os.kill, os.getpid(), number)
    assert await run_until_signal(asyncio.sleep(60, "done")) is None
    assert await run_until_signal(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(PeerLost):
        await run_until_signal(_fail())


async def _fail() -> None:
    raise PeerLost("gone")


async def test_cancellation_ends_it() -> None:
    session = FakeSession(is_needed=True)
    task = start(session, asyncio.Event())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
