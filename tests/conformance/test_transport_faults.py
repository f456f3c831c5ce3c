"""Each fault is planted into the healthy transport, and the kit is asked whether it sees it."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from parallax_core.api import Frame, ParallaxError, PeerLost
from parallax_transport_tcp.link import TcpLink
from parallax_transport_tcp.transport import TcpTransport, parse_address
from tests.conformance.harness import run_test
from tests.conformance.test_transport import TcpKit


def check(name: str, link: type[TcpLink] = TcpLink, transport: type[TcpTransport] = TcpTransport) -> str:
    """Run a test of the kit on a transport with a fault."""
    subject = type("Faulty", (transport,), {"link": link})
    changes = {"large_bytes": 2**22, "grace_s": 0.7, "timeout_s": 0.3, "make_transport": lambda _, plan: subject(plan)}
    kit = type("FaultyKit", (TcpKit,), changes)
    return run_test(kit, name)


class Swapping(TcpLink):
    """Every tenth frame overtakes the one before it."""

    count = 0

    def note_frame(self, frame: Frame) -> None:
        self.count += 1
        place = len(self._frames) - (self.count % 10 == 0)
        self._frames.insert(max(0, place), frame)


class Losing(TcpLink):
    """Every hundredth frame is gone, and its room is given back."""

    count = 0

    def note_frame(self, frame: Frame) -> None:
        self.count += 1
        if self.count % 100:
            super().note_frame(frame)
        else:
            self._out.write(b"T")


class Doubling(TcpLink):
    """Every hundredth frame comes twice."""

    count = 0

    def note_frame(self, frame: Frame) -> None:
        self.count += 1
        for _ in range(1 if self.count % 100 else 2):
            super().note_frame(frame)


class Truncating(TcpLink):
    """A buffer of more than 64 KiB loses its last byte."""

    def write_frame(self, frame: Frame) -> None:
        super().write_frame(Frame(frame.header, tuple(b[:-1] if len(b) > 2**16 else b for b in frame.buffers)))


class Flipping(TcpLink):
    """In a large buffer, one block comes in the place of another."""

    def note_frame(self, frame: Frame) -> None:
        buffers = [bytes(b) for b in frame.buffers]
        super().note_frame(
            Frame(frame.header, tuple(b[:4096] + b[:4096] + b[8192:] if len(b) > 10**5 else b for b in buffers))
        )


class Eager(TcpLink):
    """Never waits for room."""

    def write_frame(self, frame: Frame) -> None:
        super().write_frame(frame)
        self._room += 1


class Stingy(TcpLink):
    """Gets no room back for what is taken."""

    def take_frame(self) -> Frame:
        return self._frames.popleft()


class Rendezvous(TcpLink):
    """Has room for one frame, whatever its credit."""

    async def send(self, frame: Frame) -> None:
        self._room = min(self._room, 1)
        await super().send(frame)


class Forgetful(TcpLink):
    """Takes a frame, then waits for something else, and forgets it when it is cancelled there."""

    async def receive(self) -> Frame:
        frame = await super().receive()
        await asyncio.sleep(0)
        return frame


class Mixing(TcpLink):
    """Writes a frame in parts, and lets others write in between."""

    async def send(self, frame: Frame) -> None:
        first, *rest = frame.buffers or (b"",)
        await super().send(Frame(frame.header, (first,)))
        await asyncio.sleep(0)
        await super().send(Frame(frame.header, tuple(rest)))

    async def receive(self) -> Frame:
        first, second = await super().receive(), await super().receive()
        return Frame(first.header, first.buffers + second.buffers)


class Tearing(TcpLink):
    """When a send is cancelled, what was not written yet is never written."""

    async def send(self, frame: Frame) -> None:
        await super().send(Frame(frame.header))
        for buffer in frame.buffers:
            await super().send(Frame(b"b", (buffer,)))
        await super().send(Frame(b"e"))

    async def receive(self) -> Frame:
        first = await super().receive()
        parts: list[Frame] = []
        while not parts or parts[-1].header == b"b":
            parts.append(await super().receive())
        return Frame(first.header, tuple(part.buffers[0] for part in parts[:-1]))


class Boundless(TcpLink):
    """Sends what is beyond its limits, and the receiver hangs up."""

    async def send(self, frame: Frame) -> None:
        self.write_frame(frame)


class Greedy(TcpLink):
    """Holds whatever it is sent."""

    async def _read_frame(self) -> Frame:
        self._plan = type(self._plan)(node="", limits=type(self._plan.limits)(buffers=10**6), timeout_s=1)
        return await super()._read_frame()


class Dropping(TcpLink):
    """Closes without handing on what was sent."""

    async def close(self) -> None:
        self._out.transport.abort()
        await super().close()

    def note_frame(self, frame: Frame) -> None:
        self._frames.append(frame)

    async def _note(self, lost: str, *, forget: bool = False) -> None:
        await super()._note(lost, forget=True)


class Undead(TcpLink):
    """An end that was closed can still be used."""

    async def send(self, frame: Frame) -> None:
        if not self._lost:
            await super().send(frame)


class Deaf(TcpLink):
    """Does not notice that its peer is gone."""

    async def _note(self, lost: str, *, forget: bool = False) -> None:
        if forget:
            await super()._note(lost, forget=forget)


class Impatient(TcpLink):
    """Takes silence for death, and says nothing itself."""

    async def _watch(self) -> None:
        await asyncio.sleep(self._plan.timeout_s)
        await self._note("it says nothing")


class Pushy(TcpLink):
    """Takes a receiver that gives no room for dead."""

    async def send(self, frame: Frame) -> None:
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                await super().send(frame)
        except TimeoutError as error:
            raise PeerLost("it takes nothing") from error


class Fragile(TcpLink):
    """Cannot be closed twice."""

    closed = False

    async def close(self) -> None:
        assert not self.closed, "closed before"
        self.closed = True
        await super().close()


class Nameless(TcpLink):
    """Does not know its peer."""

    @property
    def peer(self) -> str:
        return "peer"

    @peer.setter
    def peer(self, name: str) -> None:
        """Forget it."""


LEFT: deque[Frame] = deque()


class Haunted(TcpLink):
    """Begins with what a link before did not deliver."""

    async def receive(self) -> Frame:
        while LEFT:
            self.note_frame(LEFT.popleft())
        return await super().receive()

    async def _note(self, lost: str, *, forget: bool = False) -> None:
        LEFT.extend(self._frames)
        await super()._note(lost, forget=forget)


LINKS = [
    (Swapping, "test_frames_keep_their_order_both_ways", "arrived in the order"),
    (Losing, "test_no_frame_is_lost", "did not arrive"),
    (Doubling, "test_no_frame_is_doubled", "arrived twice"),
    (Truncating, "test_buffers_arrive_bit_exact", "arrived as"),
    (Truncating, "test_largest_buffer_arrives_bit_exact", "arrived as"),
    (Flipping, "test_largest_buffer_arrives_bit_exact", "other bytes"),
    (Mixing, "test_concurrent_senders_send_whole_frames", "bytes of others"),
    (Eager, "test_sender_waits_when_nothing_is_taken", "frames were sent to a receiver that takes none"),
    (Rendezvous, "test_sender_waits_when_nothing_is_taken", "only 1 frames"),
    (Stingy, "test_waiting_sender_goes_on_when_frames_are_taken", "4 of 40 frames"),
    (Forgetful, "test_cancelled_receive_loses_no_frame", "were lost"),
    (Tearing, "test_cancelled_send_sends_all_or_nothing", "after cancelled sends"),
    (Boundless, "test_frame_beyond_the_limits_is_refused", "did not raise ValueError"),
    (Greedy, "test_frame_beyond_the_limits_of_the_receiver_ends_the_link", "did not raise PeerLost"),
    (Impatient, "test_idle_link_lives_on", "PeerLost"),
    (Pushy, "test_slow_receiver_is_not_lost", "sending to a slow receiver ended"),
    (Dropping, "test_frames_sent_before_close_are_received", "only 0 of 4"),
    (Undead, "test_closed_end_neither_sends_nor_receives", "did not raise PeerLost"),
    (Fragile, "test_close_twice_is_harmless", "closed before"),
    (Deaf, "test_peer_that_stops_is_lost", "not noticed by receive"),
    (Deaf, "test_waiting_sender_learns_that_its_peer_stopped", "hangs"),
    (Haunted, "test_reconnected_link_is_fresh", "of the link before"),
    (Nameless, "test_ends_know_the_name_of_their_peer", "peer"),
]


@pytest.mark.parametrize(("link", "name", "finding"), LINKS, ids=lambda value: getattr(value, "__name__", None))
def test_kit_catches_a_fault_of_links(link: type[TcpLink], name: str, finding: str) -> None:
    LEFT.clear()
    assert finding in check(name, link)


class Trusting(TcpTransport):
    """Does not look who is there."""

    def check_name(self, name: str, wanted: str, address: str) -> None:
        """Accept anybody."""


class Hopeful(TcpTransport):
    """Tries for ever."""

    async def connect(self, address: str, node: str) -> TcpLink:
        while True:
            try:
                return await super().connect(address, node)
            except PeerLost:
                await asyncio.sleep(0.05)


class Confused(TcpTransport):
    """Raises what comes to hand for an address it cannot read."""

    async def connect(self, address: str, node: str) -> TcpLink:
        if not address.startswith("tcp:"):
            raise ParallaxError(f"no such address: {address}")
        return await super().connect(address, node)


class Leaking(TcpTransport):
    """Listens a second time where somebody does, and keeps what it opened when that fails."""

    async def start(self) -> None:
        if self._plan.listen:
            host, port = parse_address(self._plan.listen)
            self._server = await asyncio.start_server(self._greet, host, port, reuse_port=True)
            self.address = f"tcp://{host}:{self._server.sockets[0].getsockname()[1]}"


class Once(TcpTransport):
    """Cannot be stopped twice."""

    async def stop(self) -> None:
        assert not self._stopped, "stopped before"
        await super().stop()


class Patient(TcpTransport):
    """Lets those who accept wait after it has stopped."""

    async def accept(self) -> TcpLink:
        async with self._changed:
            await self._changed.wait_for(lambda: self._accepted)
            return self._accepted.popleft()


class Careless(TcpTransport):
    """Forgets a link when the accept that would return it is cancelled."""

    async def accept(self) -> TcpLink:
        link = await super().accept()
        await asyncio.sleep(0.01)
        return link


class Homeless(TcpTransport):
    """Says it is somewhere when it does not listen."""

    async def start(self) -> None:
        await super().start()
        self.address = self.address or "tcp://127.0.0.1:1"


TRANSPORTS = [
    (Trusting, "test_connecting_under_a_wrong_name_fails", "did not raise PeerLost"),
    (Hopeful, "test_connecting_to_nobody_fails_in_time", "it hangs"),
    (Confused, "test_foreign_address_is_refused_with_a_hint", "without a hint"),
    (Leaking, "test_second_start_at_one_address_fails_and_leaves_nothing", "did not raise ParallaxError"),
    (Once, "test_stop_is_legal_at_any_time", "stopped before"),
    (Patient, "test_accept_ends_when_the_transport_stops", "accepting after stop hangs"),
    (Careless, "test_cancelled_accept_loses_no_link", "was never accepted"),
    (Homeless, "test_node_that_does_not_listen_has_no_address", "that does not listen is at"),
]


@pytest.mark.parametrize(("kind", "name", "finding"), TRANSPORTS, ids=lambda value: getattr(value, "__name__", None))
def test_kit_catches_a_fault_of_transports(kind: type[TcpTransport], name: str, finding: str) -> None:
    assert finding in check(name, transport=kind)


def test_every_test_of_the_kit_catches_something() -> None:
    caught = {name for _, name, _ in (*LINKS, *TRANSPORTS)}
    assert {name for name in dir(TcpKit) if name.startswith("test_")} == caught
