from __future__ import annotations

import asyncio
from functools import partial

import pytest

from parallax_core.api import PeerLost, TransportPlan
from parallax_core.base.ids import Epoch
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.worker import load_progress as module
from parallax_core.node.worker.load_progress import LoadProgressReporter
from parallax_core.wire.membership import Assign, Loading
from tests.unit.node.cluster import soon, until

ASSIGN: Assign = StageAssignment(stage=1, layers=None, model="m").assign(Epoch(3))
WRITE = partial(Loading, ASSIGN.epoch, ASSIGN.stage)


async def link() -> tuple[Channel, Channel]:
    """Return the ends of a link between a node and its head."""
    head = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    await head.start()
    near = Channel(await InProcessTransport(TransportPlan(node="near")).connect(head.address, "head"))
    return near, Channel(await head.accept())


async def test_latest_of_each_task_is_told_from_whatever_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    near, head = await link()
    async with LoadProgressReporter(near, WRITE) as reporter:
        await asyncio.to_thread(reporter, "reading", 1, None)
        reporter("reading", 2, None)
        said = await soon(head.receive())
        assert said == Loading(ASSIGN.epoch, 1, "reading", 2, -1, "bytes")
        reporter("compiling" * 100, 3, 4, "items")
    rest = await soon(head.receive())
    assert isinstance(rest, Loading)
    assert (rest.task, rest.done, rest.total, rest.unit) == (("compiling" * 100)[:256], 3, 4, "items")


async def test_loading_ends_when_the_head_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    near, head = await link()
    async with LoadProgressReporter(near, WRITE) as reporter:
        await head.close()
        reporter("reading", 1, 2)
        with pytest.raises(PeerLost):
            await until(lambda: reporter("reading", 2, 2) is not None)  # type: ignore[func-returns-value]
