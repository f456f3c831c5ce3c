from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from parallax_core.api import Frame, Link, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.profile import link_probe
from parallax_core.node.profile.link_probe import LARGE_BYTES, answer_probes, probe_link


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Link]]:
    """Yield both ends of a link."""
    near, far = (
        InProcessTransport(TransportPlan(node="near")),
        InProcessTransport(TransportPlan(node="far", listen="inprocess://")),
    )
    await near.start()
    await far.start()
    try:
        yield await near.connect(far.address, "far"), await far.accept()
    finally:
        await near.stop()
        await far.stop()


@dataclass
class SlowLink:
    """A link that takes 10 ms there and back, and 1 ms for each KiB, by a clock of its own."""

    peer: str = "far"
    now: float = 0.0
    sent: list[Frame] = field(default_factory=list)
    answer: bytes = link_probe.ANSWER

    async def send(self, frame: Frame) -> None:
        self.sent.append(frame)
        self.now += 0.010 + frame.num_bytes // 1024 / 1000

    async def receive(self) -> Frame:
        return Frame(self.answer)

    async def close(self) -> None: ...


async def test_sample_has_the_round_trip_and_the_bandwidth() -> None:
    link = SlowLink()
    sample = await probe_link(link, clock=lambda: link.now)
    assert sample.round_trip_s == pytest.approx(0.010)
    assert sample.bandwidth == pytest.approx(1024 * 1000)
    assert max(frame.num_bytes for frame in link.sent) == LARGE_BYTES + 5


async def test_cheap_sample_sends_small_messages_only() -> None:
    link = SlowLink()
    sample = await probe_link(link, with_bandwidth=False, clock=lambda: link.now)
    assert sample.bandwidth is None
    assert {frame.num_bytes for frame in link.sent} == {5}


async def test_probes_are_answered_over_a_transport_until_it_closes() -> None:
    async with linked() as (near, far):
        answering = asyncio.create_task(answer_probes(far))
        sample = await probe_link(near)
        assert sample.round_trip_s > 0
        await near.close()
        async with asyncio.timeout(5):
            await answering


async def test_peer_that_sends_something_else_is_hung_up_on() -> None:
    async with linked() as (near, far):
        answering = asyncio.create_task(answer_probes(far))
        await near.send(Frame(b"garbage"))
        async with asyncio.timeout(5):
            await answering
        with pytest.raises(PeerLost):
            await near.receive()


async def test_wrong_answer_is_an_error() -> None:
    with pytest.raises(PeerLost, match="something else"):
        await probe_link(SlowLink(answer=b"garbage"))


async def test_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_probe, "PROBE_S", 0.01)
    async with linked() as (near, _):
        with pytest.raises(TimeoutError):
            await probe_link(near)
