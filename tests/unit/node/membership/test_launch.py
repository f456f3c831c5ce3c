from __future__ import annotations

import asyncio
import sys

import pytest

from parallax_core.base.errors import BackendFailed, PeerLost
from parallax_core.node.channel import Channel
from parallax_core.node.membership import launch
from parallax_core.node.membership.launch import WorkerEnded, WorkerProcess, find_worker
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from tests.unit.node.cluster import call, open_registry, soon, until
from tests.unit.node.membership.nodes import JOIN, add_node

NAME = "worker/0/0"
WAIT = "import sys; sys.stdin.read()"


def make_supervisor(code: str = WAIT) -> WorkerSupervisor:
    """Return what starts processes that join nothing: a test joins in their place."""
    return WorkerSupervisor(lambda node: [sys.executable, "-S", "-c", code, node])


async def start(process: WorkerProcess, registry: NodeRegistry, supervisor: WorkerSupervisor) -> Channel:
    """Start a process and join as its node; return the node's end of the link."""
    before = supervisor.pids
    starting = asyncio.create_task(process.start())
    await until(lambda: bool(supervisor.pids) and supervisor.pids != before)
    channel = await call(registry, NAME)
    await channel.send(JOIN)
    assert (await soon(starting)).peer == NAME
    return channel


async def test_process_is_known_once_it_has_joined_and_until_it_is_killed() -> None:
    supervisor = make_supervisor()
    async with open_registry() as registry:
        process = WorkerProcess(NAME, registry, supervisor)
        assert (process.host, process.pid, await process.explain()) == ("", 0, "")
        first = await start(process, registry, supervisor)
        [pid] = supervisor.pids
        assert (process.host, process.pid) == ("here", 7)
        second = await start(process, registry, supervisor)
        assert supervisor.pids != (pid,)
        with pytest.raises(PeerLost):
            await soon(first.receive())
        await process.kill()
        assert (process.host, process.pid, supervisor.pids) == ("", 0, ())
        with pytest.raises(PeerLost):
            await soon(second.receive())
        await process.kill()
        await process.end()


async def test_process_that_is_asked_to_end_leaves_its_link() -> None:
    supervisor = make_supervisor()
    async with open_registry() as registry:
        process = WorkerProcess(NAME, registry, supervisor)
        channel = await start(process, registry, supervisor)
        await soon(process.end())
        assert (process.pid, supervisor.pids) == (0, ())
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_end_of_a_process_before_it_has_joined_is_explained() -> None:
    supervisor = make_supervisor("raise SystemExit(3)")
    async with open_registry() as registry:
        process = WorkerProcess(NAME, registry, supervisor)
        with pytest.raises(WorkerEnded, match="its process ended with exit code 3") as caught:
            await soon(process.start())
        assert caught.value.hint == "its log, above, says why"
        assert await process.explain() == "its process ended with exit code 3"
        await process.kill()
        assert await process.explain() == ""


async def test_process_that_does_not_join_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "JOIN_S", 0.05)
    supervisor = make_supervisor()
    async with open_registry() as registry:
        with pytest.raises(WorkerEnded, match=r"its process has not joined within 0\.05 s"):
            await soon(find_worker(registry, supervisor, NAME, lambda _: 1))
        await add_node(registry, NAME)  # nobody waits for it any more
        await supervisor.kill(NAME)


async def test_node_of_the_process_before_is_forgotten() -> None:
    supervisor = make_supervisor()
    async with open_registry() as registry:
        await add_node(registry, NAME)
        finding = asyncio.create_task(find_worker(registry, supervisor, NAME, lambda _: 1))
        await until(lambda: bool(supervisor.pids))
        assert (finding.done(), registry.waiting) == (False, ())
        finding.cancel()
        await asyncio.gather(finding, return_exceptions=True)
        await supervisor.kill(NAME)


async def test_program_that_is_not_there_is_named() -> None:
    supervisor = WorkerSupervisor(lambda _: ["/none/such"])
    async with open_registry() as registry:
        with pytest.raises(BackendFailed, match="cannot be started with /none/such: No such file"):
            await find_worker(registry, supervisor, NAME, lambda _: 1)
