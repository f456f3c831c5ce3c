"""The service held to the contract by Parallax's own kit, and to what it says of itself."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from parallax_core.api import PeerLost
from parallax_core.testing.node_service import NodeServiceConformance
from parallax_service_clock.clock import ClockSender, ClockWatcher
from parallax_service_clock.messages import ClockReading
from parallax_service_clock.plugin import parallax_register_node_services


class TestClock(NodeServiceConformance):
    [spec] = parallax_register_node_services()
    distribution = "parallax-service-clock"
    samples = (ClockReading(1.8e9),)


@dataclass
class Peer:
    """A peer whose link ends after some messages."""

    name: str = "desk/1"
    address: str = ""
    sent: list[Any] = field(default_factory=list)

    @property
    def channel(self) -> Any:
        return self

    async def send(self, message: object) -> None:
        if len(self.sent) == 2:
            raise PeerLost("the head is gone")
        self.sent.append(message)


def test_node_tells_the_time_until_its_head_is_gone() -> None:
    async def join(peer: Peer) -> None:
        times = iter((5.0, 6.0, 7.0))
        async with ClockSender(lambda: next(times), 0.0).joined(peer):
            for _ in range(20):
                await asyncio.sleep(0)

    asyncio.run(join(peer := Peer()))
    assert peer.sent == [ClockReading(5.0), ClockReading(6.0)]


@pytest.mark.parametrize(
    ("time_s", "said"),
    [(99.0, "INFO clock is right node=desk/1"), (10.0, "WARNING clock is off by -90.0 s node=desk/1")],
)
def test_head_warns_of_a_clock_that_is_off(time_s: float, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def hear() -> None:
        async with ClockWatcher(lambda: 100.0).joined(Peer()) as takers:
            takers[ClockReading](ClockReading(time_s))

    with caplog.at_level(logging.INFO):
        asyncio.run(hear())
    assert [f"{each.levelname} {each.message}" for each in caplog.records] == [said]
