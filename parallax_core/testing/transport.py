"""The kit for transports: names, addresses, closing, and the tests of `LinkConformance`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_core.base.errors import PeerLost
from parallax_core.contracts.transport import Frame, FrameLimits, Link, Transport
from parallax_core.testing.link import LinkConformance
from parallax_core.testing.pair import QUIET_S, number_frame, read_number, send_numbers, take_numbers
from parallax_core.testing.promise import broken, expect, expect_hint
from parallax_core.testing.runner import beside, in_loop, within

BEFORE_CLOSE = "Frames that a peer sent before it closed its end are still received"
RECEIVE_LOST = "if no frame can follow: the peer is gone or sent an invalid or oversized frame, or this end is"
SEND_LOST = "if the peer is gone, or this end is closed"
CLOSE_TWICE = "after delivering the frames that were sent. A second call does nothing"
CONNECT_LOST = "if no node answers there in time, or one of another name"
FOREIGN = "if ``address`` is not valid for this transport"
START_FAILS = "If it raises, nothing is left behind"
STOP = "Close every link and stop listening. May be called at any time; a second call does nothing"
ACCEPT_STOPPED = "if this transport is stopped"
ACCEPT_CANCELLED = "Wait for the next incoming link. Cancelling it loses no link"
FRAMES = "Frames arrive in the order sent"
PEER_NAME = "The name of the node at the other end"
ADDRESS = "The address at which others reach this node, once started; empty if it does not listen"


class TransportConformance(LinkConformance):
    """Holds a transport to `parallax_core.contracts.transport`, between nodes of one process.

    Subclass it in a test module under a name that begins with ``Test``, and give `make_transport` and `make_address`.
    """

    @in_loop
    async def test_frames_sent_before_close_are_received(self) -> None:
        """The receiver gets all that was sent before its peer closed, and then `PeerLost`."""
        async with self.paired() as pair:
            await send_numbers(pair.near, range(self.credit))
            async with beside(pair.near.close()) as closing:
                await asyncio.sleep(QUIET_S)
                with expect(PeerLost, "receiving after all that was sent before a close", RECEIVE_LOST):
                    for number in range(self.credit + 1):
                        taken = await self._receive_before_loss(pair.far, number)
                        assert taken == number, broken(f"frame {taken} came where {number} was sent", BEFORE_CLOSE)
                await within(self.patience_s, closing, "close hangs", CLOSE_TWICE)

    @in_loop
    async def test_closed_end_neither_sends_nor_receives(self) -> None:
        """At the end that was closed both raise `PeerLost`, also what was waiting as it was closed."""
        async with self.paired() as pair, beside(pair.near.receive()) as receiving:
            await asyncio.sleep(QUIET_S)
            await within(self.patience_s, pair.near.close(), "close hangs", CLOSE_TWICE)
            async with beside(pair.near.receive()) as later:
                for work in (receiving, later):
                    with expect(PeerLost, "receiving at an end that is closed", RECEIVE_LOST):
                        await within(self.patience_s, work, "receiving at an end that is closed hangs", RECEIVE_LOST)
            with expect(PeerLost, "sending at an end that is closed", SEND_LOST):
                await within(self.patience_s, pair.near.send(Frame(b"x")), "sending hangs", SEND_LOST)

    @in_loop
    async def test_close_twice_is_harmless(self) -> None:
        """Both ends may be closed, twice, at once and after each other."""
        async with self.paired() as pair:
            closes = (pair.near.close(), pair.far.close(), pair.near.close())
            await within(self.patience_s, asyncio.gather(*closes), "closing both ends at once hangs", CLOSE_TWICE)
            for link in (pair.near, pair.far):
                await within(self.patience_s, link.close(), "closing once more hangs", CLOSE_TWICE)

    @in_loop
    async def test_peer_that_stops_is_lost(self) -> None:
        """When the other node stops, receive and send raise `PeerLost` in time."""
        async with self.paired(timeout_s=self.timeout_s) as pair, beside(pair.near.receive()) as receiving:
            await within(self.patience_s, pair.beta.stop(), "stop hangs", STOP)
            await self.check_lost(pair.near, receiving)

    @in_loop
    async def test_waiting_sender_learns_that_its_peer_stopped(self) -> None:
        """A send that waits for room raises `PeerLost` when the other node stops, since there will be none."""
        async with (
            self.paired(timeout_s=self.timeout_s) as pair,
            beside(send_numbers(pair.near, range(10 * self.credit))) as sending,
        ):
            await asyncio.sleep(QUIET_S)
            await within(self.patience_s, pair.beta.stop(), "stop hangs", STOP)
            with expect(PeerLost, "sending to a node that has stopped", SEND_LOST):
                await within(self.patience_s, sending, "sending to a node that has stopped hangs", SEND_LOST)

    @in_loop
    async def test_frame_beyond_the_limits_of_the_receiver_ends_the_link(self) -> None:
        """A receiver is not made to hold more than its limits, whatever its peer's are; its node goes on."""
        limits = FrameLimits(header_bytes=2**23, frame_bytes=2**29, buffers=1000)
        async with self.paired(limits=limits) as pair:
            async with beside(pair.near.send(Frame(b"x", (b"",) * 999))):
                with expect(PeerLost, "receiving a frame beyond the receiver's limits", RECEIVE_LOST):
                    await within(self.patience_s, pair.far.receive(), "receiving it hangs", RECEIVE_LOST)
            async with self.started("gamma") as gamma:
                await self.check_flow(*await self.join(gamma, pair.beta, "beta"))

    @in_loop
    async def test_reconnected_link_is_fresh(self) -> None:
        """A link that is made after another was lost carries no frame of that one."""
        async with self.started("beta", listen=True) as beta:
            async with self.started("alpha") as alpha:
                near, far = await self.join(alpha, beta, "beta")
                await send_numbers(near, range(self.credit))
                await send_numbers(far, range(self.credit))
                await asyncio.sleep(QUIET_S)
            async with self.started("alpha") as alpha:
                for link in await self.join(alpha, beta, "beta"):
                    old = await take_numbers(link, 0, QUIET_S)
                    assert not old, broken(f"frames {old} of the link before came on a fresh one", FRAMES)

    @in_loop
    async def test_ends_know_the_name_of_their_peer(self) -> None:
        """Each end names the node at the other, and frames go to the node they are for."""
        async with self.started("beta", listen=True) as beta, self._several("one", "two", "three") as others:
            for number, node in enumerate(others):
                near, far = await self.join(node, beta, "beta")
                names = (near.peer, far.peer)
                wanted = ("beta", ("one", "two", "three")[number])
                assert names == wanted, broken(f"the ends of a link name {names}, where {wanted} are right", PEER_NAME)
                await self.check_flow(near, far, number)

    @in_loop
    async def test_node_that_does_not_listen_has_no_address(self) -> None:
        """The address is empty for a node that only makes links, and not for one that listens."""
        async with self.started("alpha") as alpha, self.started("beta", listen=True) as beta:
            assert alpha.address == "", broken(f"a node that does not listen is at {alpha.address!r}", ADDRESS)
            assert beta.address, broken("a node that listens has no address", ADDRESS)

    @in_loop
    async def test_connecting_to_nobody_fails_in_time(self) -> None:
        """`PeerLost` at an address where no node listens any more."""
        async with self.started("beta", listen=True) as beta:
            address = beta.address
        async with self.started("alpha", timeout_s=self.timeout_s) as alpha:
            with expect(PeerLost, "connecting where no node listens", CONNECT_LOST):
                await within(self.patience_s, alpha.connect(address, "beta"), "it hangs", CONNECT_LOST)

    @in_loop
    async def test_connecting_under_a_wrong_name_fails(self) -> None:
        """`PeerLost` where another node listens than the one asked for; that node goes on undisturbed."""
        async with self.started("beta", listen=True) as beta, self.started("alpha") as alpha:
            with expect(PeerLost, "connecting to 'gamma' where 'beta' listens", CONNECT_LOST):
                await within(self.patience_s, alpha.connect(beta.address, "gamma"), "connecting hangs", CONNECT_LOST)
            near, far = await self.join(alpha, beta, "beta")
            await self.check_flow(near, far)

    @in_loop
    async def test_foreign_address_is_refused_with_a_hint(self) -> None:
        """`ParallaxError` with a hint, for what is no address of this transport's."""
        async with self.started("alpha") as alpha:
            with expect_hint(f"connecting to {self.foreign_address!r}", FOREIGN):
                await within(self.patience_s, alpha.connect(self.foreign_address, "beta"), "connecting hangs", FOREIGN)

    @in_loop
    async def test_second_start_at_one_address_fails_and_leaves_nothing(self) -> None:
        """`ParallaxError` with a hint; the first goes on, and once it has stopped the address is free."""
        async with self.started("beta", listen=True) as beta, self.started("alpha") as alpha:
            address, threads = beta.address, threading.active_count()
            second = self.make_transport(self.make_plan("beta", address))
            with expect_hint(f"a second start at {address}", "with a hint, if it cannot listen at that address"):
                await within(self.patience_s, second.start(), "start hangs", START_FAILS)
            left = threading.active_count() - threads
            assert left <= 0, broken(f"a start that failed left {left} threads running", START_FAILS)
            await within(self.patience_s, second.stop(), "stop after a start that failed hangs", STOP)
            await self.check_flow(*await self.join(alpha, beta, "beta"))
        third = self.make_transport(self.make_plan("beta", address))
        await within(self.patience_s, third.start(), "start at an address that was given up hangs", START_FAILS)
        await third.stop()

    @in_loop
    async def test_stop_is_legal_at_any_time(self) -> None:
        """Before start, twice, and while links carry frames; then both ends of each link are closed."""
        for listen in ("", self.make_address("alpha")):
            early = self.make_transport(self.make_plan("alpha", listen))
            await within(self.patience_s, early.stop(), "stop before start hangs", STOP)
        async with self.paired() as pair, beside(send_numbers(pair.near, range(10 * self.credit))) as sending:
            await asyncio.sleep(QUIET_S)
            await within(self.patience_s, pair.alpha.stop(), "stop while a send waits hangs", STOP)
            await within(self.patience_s, pair.alpha.stop(), "stop hangs the second time", STOP)
            with expect(PeerLost, "sending on a link of a transport that has stopped", SEND_LOST):
                await within(self.patience_s, sending, "sending after stop hangs", SEND_LOST)

    @in_loop
    async def test_accept_ends_when_the_transport_stops(self) -> None:
        """Accepting raises `PeerLost` if the transport stops meanwhile, or has stopped before."""
        async with self.started("beta", listen=True) as beta, beside(beta.accept()) as accepting:
            await asyncio.sleep(QUIET_S)
            await beta.stop()
            async with beside(beta.accept()) as later:
                for work in (accepting, later):
                    with expect(PeerLost, "accepting when the transport is stopped", ACCEPT_STOPPED):
                        await within(self.patience_s, work, "accepting after stop hangs", ACCEPT_STOPPED)

    @in_loop
    async def test_cancelled_accept_loses_no_link(self) -> None:
        """A link that is made as an accept is cancelled is returned by the next accept."""
        async with self.started("beta", listen=True) as beta, self.started("alpha") as alpha:
            for turn in range(12):
                making = alpha.connect(beta.address, "beta")
                async with beside(beta.accept()) as accepting, beside(making) as connecting:
                    await asyncio.sleep(0 if turn % 2 else 0.002 * turn)
                    accepting.cancel()
                    near = await within(self.patience_s, connecting, "connecting hangs", ACCEPT_CANCELLED)
                    await asyncio.wait([accepting])
                late = "a link made while an accept was cancelled was never accepted"
                again = beta.accept() if accepting.cancelled() else accepting
                far = await within(self.patience_s, again, late, ACCEPT_CANCELLED)
                await self.check_flow(near, far)
                await near.close()

    async def check_flow(self, near: Link, far: Link, number: int = 0) -> None:
        """Check that a frame crosses each way."""
        for here, there in ((near, far), (far, near)):
            await self.send(here, number_frame(number))
            taken = read_number(await self.take(there))
            assert taken == number, broken(f"frame {taken} arrived where {number} was sent", PEER_NAME)

    async def check_lost(self, link: Link, receiving: asyncio.Future[Frame]) -> None:
        """Check that ``receiving``, which waits already, and sending on ``link`` raise `PeerLost` in time."""
        with expect(PeerLost, "receiving from a peer that is gone", RECEIVE_LOST):
            await within(self.patience_s, receiving, "a peer that is gone was not noticed by receive", RECEIVE_LOST)
        with expect(PeerLost, "sending to a peer that is gone", SEND_LOST):
            endless = send_numbers(link, range(2**40))
            await within(self.patience_s, endless, "a peer that is gone was not noticed by send", SEND_LOST)

    async def _receive_before_loss(self, link: Link, number: int) -> int:
        """Return the number of the next frame; a loss before ``credit`` frames came is a fault."""
        try:
            frame = await within(self.patience_s, link.receive(), "receiving after a close hangs", RECEIVE_LOST)
        except PeerLost as error:
            if number < self.credit:
                fault = f"only {number} of {self.credit} frames that were sent before a close were received"
                raise AssertionError(broken(fault, BEFORE_CLOSE)) from error
            raise
        return read_number(frame)

    @asynccontextmanager
    async def _several(self, one: str, two: str, three: str) -> AsyncIterator[tuple[Transport, ...]]:
        async with self.started(one) as first, self.started(two) as second, self.started(three) as third:
            yield first, second, third
