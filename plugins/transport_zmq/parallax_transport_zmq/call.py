"""Makes outgoing links: opens a socket for each, greets the node, and reports why a link was not made."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

import zmq

from parallax_core.api import Data, PeerLost, TransportPlan
from parallax_transport_zmq.arrivals import Arrivals
from parallax_transport_zmq.keyfile import name_machine
from parallax_transport_zmq.link import Peer, ZmqLink
from parallax_transport_zmq.message import BadMessage, Hello, Kind, unpack_reason, unpack_welcome
from parallax_transport_zmq.pump import Pump
from parallax_transport_zmq.target import FAREWELL_S, Context, Target, open_socket

EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Call:
    """An outgoing connection: makes a link, then carries its messages."""

    def __init__(self, context: Context, plan: TransportPlan, target: Target, node: str) -> None:
        self._plan = plan
        self._target = target
        self._node = node
        self._link: ZmqLink | None = None
        self._answer: asyncio.Future[ZmqLink] = asyncio.get_running_loop().create_future()
        socket = open_socket(context, zmq.DEALER, plan, target.guard)
        self._events = Pump(socket.get_monitor_socket(EVENTS), self._note)
        self._pump = Pump(socket, self._hear)
        self._socket = socket

    async def make_link(self) -> ZmqLink:
        """Connect, and return the link.

        Raises:
            PeerLost: if the node does not answer in time, or refuses.
        """
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                self._socket.connect(self._target.endpoint)
                with suppress(ConnectionError):  # if refused by now, an event gives the reason
                    self.post(Hello(self._plan.node, self._node, self._plan.credit).pack())
                return await self._answer
        except TimeoutError as error:
            message = f"node {self._node!r} at {self._target.address} does not answer in {self._plan.timeout_s:g} s"
            self.give_up("it did not answer")
            raise PeerLost(message, "look at the last lines of its log; is a firewall in between?") from error
        except BaseException:
            self.give_up("the call was cancelled")
            raise

    def give_up(self, reason: str) -> None:
        """End the connection in any state."""
        if self._link:
            self._link.break_off(reason, "the call was given up")
        self._fail(f"node {self._node!r} was not reached: {reason}", "try again")
        if not self._answer.cancelled():
            self._answer.exception()  # the loop may be closed
        self._close(0.0)

    def post(self, message: Data) -> None:
        """Send without waiting.

        Raises:
            ConnectionError: if the connection is closed.
        """
        self._pump.send([message])

    def post_threadsafe(self, message: Data) -> None:
        """Send without waiting, from any thread but the loop's.

        Raises:
            ConnectionError: if the connection is closed.
        """
        self._pump.send_threadsafe([message])

    def hang_up(self) -> None:
        """Close the connection; posted messages are still sent for a moment."""
        self._close(FAREWELL_S)

    def _close(self, linger_s: float) -> None:
        if not self._pump.is_closed:
            self._socket.disable_monitor()
            self._events.close()
            self._pump.close(linger_s)

    def _hear(self, parts: list[zmq.Frame]) -> None:
        if self._link is None:
            self._read_answer(parts[0])
        elif len(parts) == 1:
            self._link.hear(parts[0])
        else:
            self._link.break_off("it sent a message of several parts", "you sent a message of several parts")

    def _read_answer(self, message: zmq.Frame) -> None:
        """Read the first message: the link begins before the next one is read."""
        answer = message.bytes
        try:
            if answer[:1] == Kind.REFUSE:
                self._fail(f"node {self._node!r} was not reached: {unpack_reason(answer)}", "check name and address")
                return
            name, credit = unpack_welcome(answer)
        except BadMessage as error:
            self._fail(f"the process at {self._target.address} sent {error}", "check the address")
            return
        if name != self._node:
            self._fail(
                f"the node at {self._target.address} is called {name!r}, not {self._node!r}", "check the address"
            )
        elif not self._answer.done():
            guard = self._target.guard
            key = guard.server if guard else b""
            peer = Peer(self._node, credit, key, self._target.role, Arrivals(message))
            self._link = ZmqLink(self._plan, self, peer)
            self._answer.set_result(self._link)

    def _note(self, parts: list[zmq.Frame]) -> None:
        event, _ = struct.unpack("=Hi", parts[0].bytes)
        self._pump.drain()  # messages that came before the connection broke
        if self._link:
            if event in {zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED}:
                self._link.finish("the connection broke")
            return
        where = self._target.address
        match zmq.Event(event):
            case zmq.Event.HANDSHAKE_FAILED_AUTH:
                key = self._target.guard.pair.public.hex() if self._target.guard else "PUBLIC_KEY"
                hint = f"on its machine: `parallax keys allow {key} {name_machine(self._plan.node)}`"
                self._fail(f"node {self._node!r} at {where} does not know the key of node {self._plan.node!r}", hint)
            case zmq.Event.CLOSED:
                self._fail(f"no node answers at {where}", "is the node there started, and the address right?")
            case zmq.Event.CONNECTED:
                pass
            case _:
                message = f"{where} closed the connection before node {self._node!r} identified itself"
                self._fail(message, self._make_hint())

    def _make_hint(self) -> str:
        if self._target.guard is None:
            return "is it a node, of the same version? A node with keys asks this node for a key: `parallax keys new`"
        return f"it has to prove the key {self._target.guard.server.hex()}; compare `parallax keys list` there"

    def _fail(self, message: str, hint: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(PeerLost(message, hint))
