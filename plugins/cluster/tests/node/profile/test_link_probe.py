from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from parallax_cluster.node.profile import link_probe
from parallax_cluster.node.profile.link_probe import LARGE_BYTES, MOST_PROBES, answer_probes, probe_link
from parallax_cluster.wire.profile import Probe, ProbeAnswer
from parallax_core.api import Frame, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.wire.codec import encode
from parallax_core.wire.messages import Message, Welcome


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield both ends of a link."""
    near, far = (
        InProcessTransport(TransportPlan(node="near")),
        InProcessTransport(TransportPlan(node="far", listen="inprocess://")),
    )
    await near.start()
    await far.start()
    try:
        channel = Channel(await near.connect(far.address, "far"))
        channel.learn([ProbeAnswer])
        yield channel, Channel(await far.accept())
    finally:
        await near.stop()
        await far.stop()


@dataclass
class SlowLink:
    """A link that takes 10 ms there and back, and 1 ms for each KiB, by a clock of its own."""

    peer: str = "far"
    now: float = 1000.0
    sent: list[Frame] = field(default_factory=list)
    answer: Message = field(default_factory=ProbeAnswer)

    async def send(self, frame: Frame) -> None:
        self.sent.append(frame)
        self.now += 0.010 + frame.num_bytes // 1024 / 1000

    async def receive(self) -> Frame:
        return encode(self.answer)

    async def close(self) -> None: ...


async def test_sample_has_the_round_trip_and_the_bandwidth() -> None:
    link = SlowLink()
    sample = await probe_link(Channel(link), clock=lambda: link.now)
    assert sample.round_trip_s == pytest.approx(0.010)
    assert sample.bandwidth == pytest.approx(1024 * 1000)
    assert LARGE_BYTES < max(frame.num_bytes for frame in link.sent) < LARGE_BYTES + 16


async def test_cheap_sample_sends_small_messages_only() -> None:
    link = SlowLink()
    sample = await probe_link(Channel(link), with_bandwidth=False, clock=lambda: link.now)
    assert sample.bandwidth is None
    assert max(frame.num_bytes for frame in link.sent) < 8


async def test_probes_are_answered_over_a_transport_until_it_closes() -> None:
    async with linked() as (near, far):
        answering = asyncio.create_task(answer_probes(far))
        sample = await probe_link(near)
        assert sample.round_trip_s > 0
        await near.close()
        async with asyncio.timeout(5):
            await answering


@pytest.mark.parametrize("num_probes", [0, MOST_PROBES])
async def test_peer_that_sends_something_else_or_too_much_is_hung_up_on(num_probes: int) -> None:
    async with linked() as (near, far):
        answering = asyncio.create_task(answer_probes(far))
        for _ in range(num_probes):
            await near.send(Probe())
            assert isinstance(await near.receive(), ProbeAnswer)
        if not num_probes:
            await near.send(ProbeAnswer())
        async with asyncio.timeout(5):
            await answering
        with pytest.raises(PeerLost):
            await near.receive()


async def test_wrong_answer_is_an_error() -> None:
    with pytest.raises(PeerLost, match="answered a probe with a Welcome"):
        await probe_link(Channel(SlowLink(answer=Welcome(1, "far", "0"))))


async def test_silent_peers_are_given_up_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_probe, "PROBE_S", 0.01)
    async with linked() as (near, far):
        with pytest.raises(TimeoutError):
            await probe_link(near)
        await answer_probes(far)
