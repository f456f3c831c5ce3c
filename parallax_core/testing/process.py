"""The kit for transports between processes: killed and hung peers, and strangers."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

from parallax_core.base.errors import PeerLost
from parallax_core.base.refs import Ref
from parallax_core.contracts.transport import Frame, Link, Monitored, MonitoredOnDemand, Transport, TransportPlan
from parallax_core.testing.child import Child, HeartbeatCounter, forked
from parallax_core.testing.pair import CONNECT, NO_LINK, QUIET_S, make_bytes
from parallax_core.testing.peer import BUSY, ECHO, EXCESS, FLOOD, HOLD, HUSH, PeerPlan
from parallax_core.testing.promise import broken, expect, keep
from parallax_core.testing.runner import beside, in_loop, within
from parallax_core.testing.transport import CONNECT_LOST, FRAMES, RECEIVE_LOST, SEND_LOST, TransportConformance

GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"\xff" * 4096,
    bytes(4096),
    b"",
)
"""The bytes that strangers send: HTTP, TLS, the largest and the smallest lengths, and nothing."""
STRANGERS = 20
CONNECTS = 3
MONITORED = "Seconds of silence after which the transport itself takes the peer for lost"
UNMONITORED = "The peer is still lost after ``timeout_s`` of silence"
BESIDE = "so that peers do not take the node for hung"
ADDRESS_PARTS = "override reach_raw: this kit reads only addresses with a host and a port"


class ProcessTransportConformance(TransportConformance):
    """Holds a transport between processes to its contract; give `factory` and `make_address`.

    The peers are processes that this kit starts: ``python -m parallax_core.testing.peer``, with the same interpreter
    and module path, and ``factory`` as what makes their transport.
    """

    factory: Ref[Callable[[TransportPlan], Transport]]
    """The factory of the transport, as in `TransportSpec`; importable in another process."""
    beats_beside_loop: bool = False
    """Whether it sends heartbeats while the event loop of its node is busy; see `TransportPlan.busy_s`."""
    beats_beside_interpreter: bool = False
    """Whether a node whose interpreter lock is held is not lost for that either, but after ``busy_s``."""

    def make_transport(self, plan: TransportPlan) -> Transport:
        """Return what ``factory`` makes."""
        return self.factory.load()(plan)

    @contextmanager
    def reach_raw(self, address: str) -> Iterator[socket.socket]:
        """Connect to ``address`` below the transport, as a stranger would; for addresses ``SCHEME://HOST:PORT``."""
        parts = urlsplit(address)
        assert parts.hostname, ADDRESS_PARTS
        assert parts.port, ADDRESS_PARTS
        with closing(socket.create_connection((parts.hostname, parts.port), timeout=self.grace_s)) as stranger:
            yield stranger

    @in_loop
    async def test_frames_cross_to_another_process(self) -> None:
        """Frames of many sizes come back from another process as they were sent, and in order."""
        async with self.started("alpha") as alpha, self._forked(self._make_child_plan(self.patience_s)) as child:
            link = await self.reach(alpha, child.address, "child")
            contents = [make_bytes(size) for size in (0, 1, 65_537, self.large_bytes, 4096)]
            for number, content in enumerate(contents):
                frame = Frame(ECHO + bytes([number]), (content, b""))
                async with beside(self.send(link, frame)) as sending:
                    back = await within(6 * self.patience_s, link.receive(), "a frame did not come back", FRAMES)
                    await sending
                assert back.header == frame.header, broken(f"{back.header!r} came back, not {frame.header!r}", FRAMES)
                same = [bytes(buffer) for buffer in back.buffers] == [content, b""]
                assert same, broken(f"{len(content)} bytes came back changed", "The data of its tensors")

    @in_loop
    async def test_killed_peer_is_lost_in_time(self) -> None:
        """When the other process dies, receive and send raise `PeerLost` within ``timeout_s``."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            async with beside(link.receive()) as receiving:
                child.signal(signal.SIGKILL)
                await self.check_lost(link, receiving)

    @in_loop
    async def test_hung_peer_is_lost_in_time(self) -> None:
        """When the other process hangs, with its connection open, receive and send raise `PeerLost` all the same."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            async with beside(link.receive()) as receiving:
                child.signal(signal.SIGSTOP)
                await self.check_lost(link, receiving)

    @in_loop
    async def test_peer_whose_loop_is_busy_is_not_lost(self) -> None:
        """A node that is busy for longer than ``timeout_s``, and not for ``busy_s``, keeps its links at both ends."""
        if not self.beats_beside_loop:
            return
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            frame = Frame(BUSY + b"%d" % round(3000 * self.timeout_s))
            await self.send(link, frame)
            fault = "a node whose loop was busy"
            with keep(PeerLost, fault, BESIDE):
                back = await within(3 * self.timeout_s + self.grace_s, link.receive(), f"{fault} hangs", BESIDE)
                assert back == frame, broken(f"{fault} sent {back.header!r}", FRAMES)
                await self._check_echo(link)

    @in_loop
    async def test_peer_whose_loop_is_busy_for_ever_is_lost(self) -> None:
        """After ``busy_s`` a busy loop is a hung one."""
        if not self.beats_beside_loop:
            return
        plan = self._make_child_plan(busy_s=2 * self.timeout_s)
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked(plan) as child:
            link = await self._reach_busy(alpha, child.address)
            await self.send(link, Frame(BUSY + b"%d" % round(1000 * (4 * self.timeout_s + 2 * self.grace_s))))
            with expect(PeerLost, "receiving from a node whose loop is busy for ever", RECEIVE_LOST):
                limit_s = 3 * self.timeout_s + self.grace_s
                await within(limit_s, link.receive(), "a loop that is busy for ever was not noticed", RECEIVE_LOST)

    @in_loop
    async def test_peer_that_holds_its_interpreter_is_not_lost(self) -> None:
        """A node whose interpreter lock is held for longer than ``timeout_s`` keeps its links, and is heard of."""
        if not self.beats_beside_interpreter:
            return
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            frame, beats = Frame(HOLD + b"%d" % round(3000 * self.timeout_s)), HeartbeatCounter()
            await self.send(link, frame)
            await asyncio.sleep(self.timeout_s)  # what was sent before may have arrived by now
            if isinstance(link, Monitored):
                link.monitor(beats.note)
                await within(self.patience_s, beats.wait(), "nothing was heard of a node that holds its lock", BESIDE)
            fault = "a node that held its interpreter lock"
            with keep(PeerLost, fault, BESIDE):
                back = await within(3 * self.timeout_s + self.grace_s, link.receive(), f"{fault} hangs", BESIDE)
                assert back == frame, broken(f"{fault} sent {back.header!r}", FRAMES)
                await self._check_echo(link)

    @in_loop
    async def test_peer_that_holds_its_interpreter_for_ever_is_lost(self) -> None:
        """After ``busy_s`` it counts as hung."""
        if not self.beats_beside_interpreter:
            return
        async with self._started_busy(2 * self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            await self.send(link, Frame(HOLD + b"%d" % round(1000 * (4 * self.timeout_s + 2 * self.grace_s))))
            with expect(PeerLost, "receiving from a node that holds its interpreter lock for ever", RECEIVE_LOST):
                limit_s = 3 * self.timeout_s + self.grace_s
                await within(limit_s, link.receive(), "a lock that is held for ever was not noticed", RECEIVE_LOST)

    @in_loop
    async def test_node_whose_own_loop_is_busy_is_not_lost(self) -> None:
        """Neither is it that loses its peer, nor does that lose it."""
        if not self.beats_beside_loop:
            return
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            time.sleep(3 * self.timeout_s)  # noqa: ASYNC251 -- so that nothing else is done
            with keep(PeerLost, "a node whose loop was busy", BESIDE):
                await self._check_echo(link)

    @in_loop
    async def test_heartbeats_are_reported(self) -> None:
        """A link that is `Monitored` reports heartbeats of a peer that sends nothing, also while its loop is busy."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            if not isinstance(link, Monitored):
                return
            assert link.timeout_s == self.timeout_s, broken(f"its timeout is {link.timeout_s:g} s", MONITORED)
            beats = HeartbeatCounter()
            link.monitor(beats.note)
            await within(self.patience_s, beats.wait(), "no heartbeat of an idle peer was reported", MONITORED)
            await self.send(link, Frame(BUSY + b"%d" % round(1000 * (self.timeout_s + self.grace_s))))
            await within(self.patience_s, beats.wait(), "no heartbeat of a busy peer was reported", MONITORED)

    @in_loop
    async def test_link_that_is_monitored_no_longer_stays(self) -> None:
        """A link that is `MonitoredOnDemand` outlives ``timeout_s`` unmonitored, and reports again when it is asked."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            if not isinstance(link, MonitoredOnDemand):
                return
            beats = HeartbeatCounter()
            link.monitor(beats.note)
            await within(self.patience_s, beats.wait(), "no heartbeat was reported", MONITORED)
            link.unmonitor()
            fault = "a node whose link was not monitored"
            with keep(PeerLost, fault, UNMONITORED):
                await asyncio.sleep(2 * self.timeout_s)
                await self._check_echo(link)
            link.monitor(beats.note)
            await within(self.patience_s, beats.wait(), "no heartbeat was reported when it was asked again", MONITORED)

    @in_loop
    async def test_waiting_sender_learns_that_its_peer_hangs(self) -> None:
        """A send that waits for room raises `PeerLost` when the other process hangs."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            await self.send(link, Frame(HUSH))
            async with beside(self._send_endless(link)) as sending:
                await asyncio.sleep(QUIET_S)
                child.signal(signal.SIGSTOP)
                with expect(PeerLost, "a send that waits for a peer that hangs", SEND_LOST):
                    await within(self.patience_s, sending, "a hung peer was not noticed by a waiting send", SEND_LOST)

    @in_loop
    async def test_peer_that_hangs_in_the_middle_is_lost(self) -> None:
        """A peer that hangs while it sends is lost as well; what came whole before is received."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            await self.send(link, Frame(FLOOD))
            for number in range(100):
                frame = await self.take(link)
                assert frame.header[1:] == number.to_bytes(8, "big"), broken("a frame is out of order", FRAMES)
            child.signal(signal.SIGSTOP)
            with expect(PeerLost, "receiving from a peer that hangs", RECEIVE_LOST):
                await within(self.patience_s, self._take_all(link), "a hung peer was not noticed", RECEIVE_LOST)

    @in_loop
    async def test_connecting_to_a_hung_node_fails_in_time(self) -> None:
        """`PeerLost` where a process listens that does not run."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            child.signal(signal.SIGSTOP)
            with expect(PeerLost, "connecting to a node that hangs", CONNECT_LOST):
                work = alpha.connect(child.address, "child")
                await within(self.patience_s, work, "connecting to a node that hangs hangs", CONNECT_LOST)

    @in_loop
    async def test_peer_that_sends_too_much_is_lost(self) -> None:
        """A frame beyond the limits of its receiver ends the link, and only that one."""
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha, self._forked() as child:
            link = await self._reach_busy(alpha, child.address)
            other = await self._reach_busy(alpha, child.address)
            await self.send(link, Frame(EXCESS + b"900"))
            with expect(PeerLost, "receiving 900 buffers where 64 are allowed", RECEIVE_LOST):
                await within(self.patience_s, link.receive(), "a peer that sends too much was not lost", RECEIVE_LOST)
            await self._check_echo(other)

    @in_loop
    async def test_strangers_do_no_harm(self) -> None:
        """A peer that sends garbage gets no link, and disturbs no other."""
        async with self.started("beta", listen=True) as beta, self.started("alpha") as alpha:
            near, far = await self.join(alpha, beta, "beta")
            async with beside(beta.accept()) as accepting:
                for content in GARBAGE:
                    with self.reach_raw(beta.address) as stranger:
                        stranger.sendall(content)
                        await asyncio.sleep(QUIET_S)
                got = "a stranger that sent garbage was accepted as a node"
                assert not accepting.done(), broken(got, "Wait for the next incoming link")
            await self.check_flow(near, far)
            await self.check_flow(*await self.join(alpha, beta, "beta"))

    @in_loop
    async def test_silent_strangers_block_nobody(self) -> None:
        """While many strangers are connected and say nothing, a node can still be reached."""
        async with self.started("beta", listen=True) as beta, self.started("alpha") as alpha:
            with ExitStack() as stack:
                for _ in range(STRANGERS):
                    stack.enter_context(self.reach_raw(beta.address))
                await asyncio.sleep(QUIET_S)
                await self.check_flow(*await self.join(alpha, beta, "beta"))

    def _make_child_plan(self, timeout_s: float = 0.0, busy_s: float = 30.0) -> PeerPlan:
        """Return what the process of a peer is told."""
        return PeerPlan("child", self.make_address("child"), self.credit, timeout_s or self.timeout_s, busy_s, 1000)

    @asynccontextmanager
    async def _started_busy(self, busy_s: float) -> AsyncIterator[Transport]:
        """Start ``alpha`` for a peer that may be busy for that long, and stop it in the end."""
        plan = self.make_plan("alpha", "")
        transport = self.make_transport(replace(plan, timeout_s=self.timeout_s, busy_s=busy_s))
        await transport.start()
        try:
            yield transport
        finally:
            await transport.stop()

    @asynccontextmanager
    async def _forked(self, plan: PeerPlan | None = None) -> AsyncIterator[Child]:
        """Start a node called ``child`` in a process of its own, and end that in the end."""
        async with forked(self.factory.target, plan or self._make_child_plan(), 10 * self.grace_s) as child:
            yield child

    async def _reach_busy(self, transport: Transport, address: str) -> Link:
        """Make a link to the child; on a busy machine, once may be too little for a ``timeout_s`` that is short."""
        for _ in range(CONNECTS - 1):
            with suppress(PeerLost):
                return await within(self.patience_s, transport.connect(address, "child"), NO_LINK, CONNECT)
        return await self.reach(transport, address, "child")

    async def _check_echo(self, link: Link) -> None:
        await self.send(link, Frame(ECHO))
        back = (await self.take(link)).header
        assert back == ECHO, broken(f"{back!r} came where {ECHO!r} was sent", FRAMES)

    async def _send_endless(self, link: Link) -> None:
        while True:
            await link.send(Frame(HUSH))
            await asyncio.sleep(0)

    async def _take_all(self, link: Link) -> None:
        while True:
            await link.receive()
