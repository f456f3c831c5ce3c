from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from parallax_core.api import Frame, FrameLimits, Ref, Transport, TransportPlan
from parallax_core.testing.process import ProcessTransportConformance
from parallax_core.testing.transport import TransportConformance
from parallax_transport_tcp.link import TcpLink
from parallax_transport_tcp.transport import TcpTransport
from tests.conformance.harness import list_tests, run_test


class ProcessKit(ProcessTransportConformance):
    factory: Ref[Callable[[TransportPlan], Transport]] = Ref("parallax_transport_tcp.transport:TcpTransport")

    def make_address(self, node: str) -> str:
        return "tcp://127.0.0.1:0"


OWN = [name for name in list_tests(ProcessKit) if name not in list_tests(TransportConformance)]


class Numb(TcpLink):
    """Does not notice that its peer says nothing."""

    async def _watch(self) -> None:
        while True:
            self._out.write(b"B")
            await asyncio.sleep(self._plan.timeout_s / 5)


class Deaf(TcpLink):
    """Does not even notice that the connection is gone."""

    async def _note(self, lost: str, *, forget: bool = False) -> None:
        if forget:
            await super()._note(lost, forget=forget)


class Gullible(TcpTransport):
    """Takes anybody for a node."""

    async def identify(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> str:
        return await super().identify(reader, out) or "somebody"


class Polite(TcpTransport):
    """Attends to one who connects after the other, however long they say nothing."""

    def __init__(self, plan: TransportPlan) -> None:
        super().__init__(plan)
        self._turn = asyncio.Lock()

    async def identify(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> str:
        async with self._turn:
            return await super().identify(reader, out)


class Greedy(TcpLink):
    """Holds whatever it is sent."""

    async def _read_frame(self) -> Frame:
        self._plan = TransportPlan(node="", limits=FrameLimits(buffers=10**6), timeout_s=1)
        return await super()._read_frame()


class Truncating(TcpLink):
    """A buffer of more than 64 KiB loses its last byte."""

    def write_frame(self, frame: Frame) -> None:
        super().write_frame(Frame(frame.header, tuple(b[:-1] if len(b) > 2**16 else b for b in frame.buffers)))


class Endless(TcpTransport):
    """Waits for an answer as long as it takes."""

    async def connect(self, address: str, node: str) -> TcpLink:
        self._plan = TransportPlan(node=self._plan.node, timeout_s=100)
        return await super().connect(address, node)


class Mute(TcpLink):
    """Has heartbeats, and reports none."""

    timeout_s = 0.5

    def monitor(self, hear: Callable[[], None]) -> None:
        del hear


class Forgetful(TcpLink):
    """Reports what it is first asked for."""

    timeout_s = 0.5
    is_asked = False

    def monitor(self, hear: Callable[[], None]) -> None:
        for number in range(0 if self.is_asked else 10):
            asyncio.get_running_loop().call_later(number / 10, hear)
        self.is_asked = True

    def unmonitor(self) -> None:
        """Do nothing."""


FAULTS = [
    (Truncating, TcpTransport, "test_frames_cross_to_another_process", "came back changed"),
    (Deaf, TcpTransport, "test_killed_peer_is_lost_in_time", "not noticed by receive"),
    (Numb, TcpTransport, "test_hung_peer_is_lost_in_time", "not noticed by receive"),
    (Mute, TcpTransport, "test_heartbeats_are_reported", "no heartbeat of an idle peer was reported"),
    (Forgetful, TcpTransport, "test_link_that_is_monitored_no_longer_stays", "when it was asked again"),
    (Numb, TcpTransport, "test_waiting_sender_learns_that_its_peer_hangs", "not noticed by a waiting send"),
    (Numb, TcpTransport, "test_peer_that_hangs_in_the_middle_is_lost", "a hung peer was not noticed"),
    (TcpLink, TcpTransport, "test_peer_whose_loop_is_busy_is_not_lost", "a node whose loop was busy was lost"),
    (TcpLink, TcpTransport, "test_node_whose_own_loop_is_busy_is_not_lost", "a node whose loop was busy was lost"),
    (Numb, TcpTransport, "test_peer_whose_loop_is_busy_for_ever_is_lost", "busy for ever was not noticed"),
    (TcpLink, TcpTransport, "test_peer_that_holds_its_interpreter_is_not_lost", "held its interpreter lock was lost"),
    (Numb, TcpTransport, "test_peer_that_holds_its_interpreter_for_ever_is_lost", "held for ever was not noticed"),
    (TcpLink, Endless, "test_connecting_to_a_hung_node_fails_in_time", "connecting to a node that hangs hangs"),
    (Greedy, TcpTransport, "test_peer_that_sends_too_much_is_lost", "did not raise PeerLost"),
    (TcpLink, Gullible, "test_strangers_do_no_harm", "was accepted as a node"),
    (TcpLink, Polite, "test_silent_strangers_block_nobody", "no link was made"),
]


@pytest.mark.parametrize(("link", "transport", "name", "finding"), FAULTS)
def test_kit_catches_a_fault(link: type[TcpLink], transport: type[TcpTransport], name: str, finding: str) -> None:
    subject = type("Faulty", (transport,), {"link": link})
    changes = {
        "large_bytes": 2**22,
        "grace_s": 2.5,
        "timeout_s": 0.5,
        "beats_beside_loop": True,
        "beats_beside_interpreter": True,
        "make_transport": lambda _, plan: subject(plan),
    }
    assert finding in run_test(type("FaultyKit", (ProcessKit,), changes), name)


def test_every_test_of_the_kit_catches_something() -> None:
    assert set(OWN) == {name for _, _, name, _ in FAULTS}
