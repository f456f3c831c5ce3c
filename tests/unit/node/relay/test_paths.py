from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_core.api import PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.relay.paths import RelayPaths
from tests.unit.node.cluster import soon
from tests.unit.node.relay.lonely import LonelyTransport


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield both ends of a link on which there is a stream."""
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = InProcessTransport(TransportPlan(node="near"))
    yield Channel(await near.connect(far.address, "far")), Channel(await far.accept())
    await far.stop()


async def test_stream_over_which_no_node_answers_is_closed() -> None:
    paths = RelayPaths(LonelyTransport(TransportPlan(node="near")), "near")
    async with streaming() as (near, far):
        with pytest.raises(PeerLost, match="'other' does not answer"):
            await paths._make_link(near, "other")
        with pytest.raises(PeerLost):
            await soon(far.receive())


async def test_machine_that_has_no_more_files_loses_no_more_than_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start_server(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "start_server", start_server)
    paths = RelayPaths(LonelyTransport(TransportPlan(node="near")), "near")
    async with streaming() as (near, far):
        with pytest.raises(PeerLost, match="Too many open files"):
            await paths._make_link(near, "other")
        with pytest.raises(PeerLost):
            await soon(far.receive())
