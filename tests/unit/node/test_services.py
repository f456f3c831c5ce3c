from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from parallax_core.api import (
    Epoch,
    JoinedPeer,
    LinkPurpose,
    NodeService,
    ParallaxError,
    PeerLost,
    ServiceMessage,
    StageLost,
    Takers,
    TransportPlan,
    service_tag,
)
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.services import Services
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.wire.messages import Step

STEP = Step(Epoch(2), 3)


class Note(ServiceMessage, frozen=True, tag=service_tag("notes", 0)):
    number: int = 0


class Other(ServiceMessage, frozen=True, tag=service_tag("notes", 1)):
    pass


@dataclass(frozen=True)
class Peer:
    name: str
    address: str
    channel: Channel


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Channel, Peer]]:
    """Link two nodes; give the end of one, and the peer as the other knows it."""
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = Channel(await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far"))
    yield near, Peer("near", "", Channel(await far.accept()))
    await far.stop()


class Noting(NodeService):
    """Notes messages, and what happens to it."""

    def __init__(self, *, enter: Exception | None = None, leave: Exception | None = None) -> None:
        self.noted: list[object] = []
        self._enter, self._leave = enter, leave

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        if self._enter is not None:
            raise self._enter
        try:
            yield {Note: self.take}
        finally:
            self.noted.append(f"left {peer.name}")
            if self._leave is not None:
                raise self._leave

    def take(self, message: Note) -> None:
        self.noted.append(10 // message.number)

    async def close(self) -> None:
        self.noted.append("closed")


class Running(NodeService):
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def run(self) -> None:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()

    async def close(self) -> None:
        raise LookupError("cannot be closed")


class Linking(NodeService):
    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        return {"note": LinkPurpose(serve=lambda _: asyncio.sleep(0))}


def make_services(*several: NodeService) -> Services:
    services = Services()
    for service in several:
        services.add(service)
    return services


async def test_service_gets_its_messages_and_no_others() -> None:
    services = make_services(noting := Noting(), NodeService())
    async with linked() as (near, peer):
        async with services.joined(peer):
            await near.send(Note(5))
            await near.send(STEP)
            assert await peer.channel.receive() == STEP
        assert noting.noted == [2, "left near"]


async def test_message_that_cannot_be_taken_ends_the_link(caplog: pytest.LogCaptureFixture) -> None:
    services = make_services(Noting())
    async with linked() as (near, peer), services.joined(peer):
        await near.send(Note(0))
        with pytest.raises(PeerLost, match="a Note cannot be taken"):
            await peer.channel.receive()
    assert "service Noting has failed" in caplog.text


@pytest.mark.parametrize("faulty", [Noting(enter=LookupError("no sensor")), Noting(leave=LookupError("no sensor"))])
async def test_service_that_fails_as_a_peer_comes_or_goes_ends_no_other(
    faulty: Noting, caplog: pytest.LogCaptureFixture
) -> None:
    services = make_services(faulty, noting := Noting())
    async with linked() as (_, peer):
        with pytest.raises(PeerLost, match="by hand"):
            async with services.joined(peer):
                raise PeerLost("ended by hand")
        assert noting.noted == ["left near"]
    assert "service Noting has failed" in caplog.text


async def test_peer_that_is_lost_as_a_service_takes_it_is_no_fault_of_the_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    services = make_services(Noting(enter=PeerLost("gone")))
    async with linked() as (_, peer), services.joined(peer):
        pass
    assert caplog.text == ""


async def test_loss_of_a_stage_ends_a_node_and_no_head() -> None:
    node = NodeServices(InProcessTransport(TransportPlan(node="here")))
    node.add(noting := Noting())
    node.add(Running(StageLost("the device is gone")))
    with pytest.raises(StageLost, match="the device is gone"):
        await node.run()
    assert noting.noted == ["closed"]
    head = make_services(Running(StageLost("the device is gone")))
    running = asyncio.create_task(head.run())
    await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_service_that_fails_ends_no_other_and_all_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    services = make_services(Running(LookupError("no sensor")), Running(None), noting := Noting())
    services.start()
    await asyncio.sleep(0.01)
    assert "no sensor" in caplog.text
    assert noting.noted == []
    await services.stop()
    assert noting.noted
    assert caplog.text.count("service Running has failed") >= 3


async def test_services_that_never_ran_are_closed() -> None:
    services = make_services(noting := Noting())
    await services.stop()
    assert noting.noted == ["closed"]


def test_purpose_belongs_to_one_service() -> None:
    purposes = {"client": LinkPurpose(serve=lambda _: asyncio.sleep(0))}
    services = Services(purposes)
    services.add(Linking())
    assert purposes.keys() == {"client", "note"}
    with pytest.raises(ParallaxError, match="links for 'note' are served by two node services"):
        services.add(Linking())
    assert len(list(services)) == 1


def test_service_that_is_not_there_is_named() -> None:
    services = make_services(noting := Noting())
    assert services.find(Noting) is noting
    with pytest.raises(ParallaxError, match="has no Linking"):
        services.find(Linking)
