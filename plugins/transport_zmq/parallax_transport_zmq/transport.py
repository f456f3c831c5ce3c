"""The transport: makes and accepts links, and sends the heartbeats of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq

from parallax_core.api import Admission, ParallaxError, PeerLost, TransportPlan, keys_folder
from parallax_transport_zmq.address import Endpoint, IpcEndpoint, TcpEndpoint, advertise_host, find_host, parse_address
from parallax_transport_zmq.call import Call
from parallax_transport_zmq.connection_thread import ConnectionThread
from parallax_transport_zmq.heartbeat import find_interval
from parallax_transport_zmq.ipcfile import claim_path
from parallax_transport_zmq.keyfile import name_machine
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.link import ZmqLink
from parallax_transport_zmq.listener import KeyCheck, Listener
from parallax_transport_zmq.message import BadMessage, check_name
from parallax_transport_zmq.security import ZapHandler, guard_listening
from parallax_transport_zmq.target import Context, bind_tcp, find_target, open_socket, stop_context

MOST_WAITING, MOST_WAITING_OF_ONE = 64, 16
"""The most links that wait to be accepted: of all nodes, and of the nodes of one machine."""
WAITING_S = 30.0
"""Seconds for which a link waits to be accepted, approximately."""
KEYS_S = 0.5
"""Seconds between checks that the keys of peers are still allowed, approximately."""
FILES_S = 1.0
"""Seconds between two looks at each key file, in which its rights may have changed."""
STOP_S = 2.0
"""Seconds for which a stop waits to send goodbyes: the process has to end within three seconds."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a transport holds for others."""

    links: int
    waiting: int
    """Links that wait to be accepted."""
    calls: int
    """Links that are being made."""
    connections: int
    """Connections of others, linked or not, where they need a key."""
    frames: int
    """Frames that have come and were not received yet."""
    num_bytes: int
    """Of these frames."""


class ZmqTransport:
    """The links of a node over ZeroMQ; see `parallax_core.api.Transport`."""

    def __init__(self, plan: TransportPlan) -> None:
        self._plan = plan
        self._keyring = Keyring(keys_folder(), plan.heads, FILES_S)
        self._admission: Admission | None = None
        self._address = ""
        self._port = 0
        """The port of loopback for streams; 0: it is not open."""
        self._file: Path | None = None
        self._context: Context | None = None
        self._strangers: ConnectionThread | None = None
        self._listener: Listener | None = None
        self._links: set[ZmqLink] = set()
        self._calls: set[Call] = set()
        self._waiting: deque[tuple[ZmqLink, float]] = deque()
        """Links that wait to be accepted, and when they were made."""
        self._news = asyncio.Event()
        self._is_stopped = False
        self._clock: asyncio.TimerHandle | None = None
        self._beat_s = find_interval(plan)
        self._keys_checked = 0.0
        self._last_beat = 0.0
        """When the loop last sent heartbeats, on its clock, which is `time.monotonic`."""
        self._ended = threading.Event()
        self._beat_thread = threading.Thread(target=self._run_thread, name="parallax-zmq-beat", daemon=True)

    @property
    def address(self) -> str:
        """The address at which others reach this node, once started; empty if it does not listen."""
        return self._address

    def measure(self) -> Held:
        """Return what it holds for others."""
        frames = [frame for link in self._links if not link.is_over for frame in link.frames]
        return Held(
            links=sum(not link.is_over for link in self._links),
            waiting=len(self._waiting),
            calls=len(self._calls),
            connections=len(self._strangers.connections) if self._strangers is not None else 0,
            frames=len(frames),
            num_bytes=sum(frame.num_bytes for frame in frames),
        )

    def enrol_by(self, admission: Admission) -> None:
        """Admit machines by a code, as ``admission`` decides; see `Enrolling`."""
        self._admission = admission

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        """Trust these nodes as workers; see `Introducing`."""
        self._keyring.introduce(keys)

    async def start(self) -> None:
        """Begin to listen, if asked to.

        Raises:
            ParallaxError: if it cannot listen there, or has no key to listen off loopback.
        """
        try:
            check_name(self._plan.node)
        except BadMessage as error:
            raise ParallaxError(f"{self._plan.node!r} cannot be the name of a node", str(error)) from error
        self._context = zmq.Context()
        try:
            if self._plan.listen:
                await self._listen(parse_address(self._plan.listen))
        except BaseException:
            await self.stop()
            raise
        self._last_beat = asyncio.get_running_loop().time()
        self._beat()
        self._beat_thread.start()

    async def connect(self, address: str, node: str) -> ZmqLink:
        """Make a link to the node called ``node`` at ``address``.

        Raises:
            PeerLost: if the node does not answer in time, has another name or key, or does not trust this node.
            ParallaxError: if ``address`` is not one of this transport, or a key is missing.
        """
        parse_address(address)
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                target = await find_target(address, node, self._plan.node, self._keyring)
        except TimeoutError as error:
            raise PeerLost(f"the host of {address} was not found in time", "check the address") from error
        if self._context is None or self._is_stopped:
            raise self._say_stopped()
        call = Call(self._context, self._plan, target, node)
        self._calls.add(call)
        try:
            link = await call.make_link()
        finally:
            self._calls.discard(call)
        self._links.add(link)
        return link

    async def open_port(self) -> int:
        """Accept links at a port of loopback, too; see `Relayable`.

        Raises:
            ParallaxError: if this node does not listen, or not with keys.
        """
        if self._listener is None:
            raise ParallaxError(f"node {self._plan.node!r} does not listen", "start it with an address to listen at")
        self._port = self._port or self._listener.open_port()
        return self._port

    async def connect_port(self, port: int, node: str) -> ZmqLink:
        """Connect to a node by a port of loopback that leads to it; see `Relayable`.

        Raises:
            PeerLost: if it does not answer in time, or has another name or key.
        """
        return await self.connect(f"tcp://127.0.0.1:{port}", node)

    async def accept(self) -> ZmqLink:
        """Wait for the next link that another node makes.

        Raises:
            PeerLost: if this transport is stopped.
        """
        while not self._waiting and not self._is_stopped:
            self._news.clear()
            await self._news.wait()
        if self._is_stopped:
            raise self._say_stopped()
        link, _ = self._waiting.popleft()
        return link

    async def stop(self) -> None:
        """Close every link, and stop listening. Idempotent; legal at any time.

        Peers that do not answer a goodbye within `STOP_S` are left without one.
        """
        self._is_stopped = True
        self._news.set()
        for call in list(self._calls):
            call.give_up("this node has stopped")
        if closing := [asyncio.ensure_future(link.close()) for link in self._links]:
            await asyncio.wait(closing, timeout=STOP_S)
        for link in self._links:
            link.finish("this node has stopped")
        await asyncio.gather(*closing)
        await self._release()

    async def _release(self) -> None:
        if self._clock:
            self._clock.cancel()
        self._ended.set()
        if self._beat_thread.is_alive():
            self._beat_thread.join()
        if self._file:  # ZeroMQ does not remove it; no other process can listen there yet
            self._file.unlink(missing_ok=True)
        for part in (self._listener, self._strangers):
            if part:
                part.close()
        self._file = self._listener = self._strangers = None
        context, self._context = self._context, None
        if context:
            await stop_context(context)

    async def _listen(self, place: Endpoint) -> None:
        if isinstance(place, TcpEndpoint):
            await self._listen_tcp(place)
            return
        socket = open_socket(self._make_context(), zmq.ROUTER, self._plan, None)
        with contextlib.ExitStack() as stack:
            stack.callback(socket.close)
            with claim_path(place.path):
                _bind_ipc(socket, place)
            stack.pop_all()
        self._file = place.path
        self._open(socket, str(place), None)

    async def _listen_tcp(self, place: TcpEndpoint) -> None:
        try:
            ip = await find_host(place.host)
        except OSError as error:
            raise ParallaxError(f"there is no host {place.host!r}: {error}", "name one of this machine") from error
        guard = guard_listening(self._keyring, self._plan.node, is_loopback=ip.is_loopback, where=str(place))
        zap = ZapHandler(self._allows)  # without it ZeroMQ accepts any peer
        self._strangers = ConnectionThread(self._make_context(), zap, self._keyring.follow)
        socket = open_socket(self._make_context(), zmq.ROUTER, self._plan, guard)
        with contextlib.ExitStack() as stack:
            stack.callback(socket.close)
            self._strangers.start(socket)
            port = bind_tcp(socket, place, ip)
            stack.pop_all()
        check = KeyCheck(self._keyring, self._strangers.connections, self._admission)
        self._open(socket, str(TcpEndpoint(advertise_host(place.host), port)), check)

    def _open(self, socket: zmq.Socket[bytes], address: str, check: KeyCheck | None) -> None:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a lost peer raises
        self._listener = Listener(self._plan, socket, self._offer, check)
        self._address = address

    def _allows(self, key: bytes) -> bool:
        """Return whether a peer may connect, by its own key or by that of a code; called on `ConnectionThread`."""
        return self._keyring.allows(key) or (self._admission is not None and self._admission.knows(key))

    def _make_context(self) -> Context:
        if self._context is None:
            raise self._say_stopped()
        return self._context

    def _offer(self, link: ZmqLink) -> bool:
        """Queue a link to be accepted; return False if too many wait."""
        machine = name_machine(link.peer)
        num_of_one = sum(name_machine(each.peer) == machine for each, _ in self._waiting)
        if len(self._waiting) >= MOST_WAITING or num_of_one >= MOST_WAITING_OF_ONE or self._is_stopped:
            return False
        self._links.add(link)
        self._waiting.append((link, asyncio.get_running_loop().time()))
        self._news.set()
        return True

    def _drop_waiting(self, now: float) -> None:
        """Close links that were not accepted in time."""
        for link, since in self._waiting:
            if now - since > WAITING_S:
                link.break_off("it was not accepted in time", f"the link was not accepted in {WAITING_S:g} s")
        self._waiting = deque((link, since) for link, since in self._waiting if not link.is_over)

    def _check_keys(self) -> None:
        """Close links to peers whose keys are no longer trusted, or have another role."""
        for link in self._links:
            if link.key and self._keyring.find_role(link.key, link.peer) != link.role:
                link.break_off("its key is no longer allowed", "your key is no longer allowed, or has another role")

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        listened_s = min(now - self._last_beat, 2 * self._beat_s)  # beyond that, this loop was busy and did not listen
        if now - self._keys_checked >= KEYS_S:
            self._keys_checked = now
            self._check_keys()
        self._drop_waiting(now)
        self._links = {link for link in self._links if not link.is_over}
        for link in self._links:
            link.beat(listened_s)
        self._last_beat = now
        # At multiples of the interval, which are those of other timers, too: a process wakes once for all of them.
        self._clock = loop.call_at(round(now / self._beat_s + 1) * self._beat_s, self._beat)

    def _run_thread(self) -> None:
        """Send heartbeats while the loop is busy, so that peers do not lose this node; after ``busy_s`` leave them."""
        wait_s = most_s = 2 * self._beat_s
        while not self._ended.wait(wait_s):
            late_s = time.monotonic() - self._last_beat
            for link in tuple(self._links) if late_s >= most_s else ():
                if late_s < self._plan.busy_s:
                    link.beat_threadsafe()
                else:
                    link.part_threadsafe(f"its event loop has been busy for {self._plan.busy_s:g} s")
            wait_s = self._beat_s if late_s >= most_s else most_s - late_s

    def _say_stopped(self) -> PeerLost:
        return PeerLost(f"node {self._plan.node!r} has stopped, or has not started", "start it again")


def _bind_ipc(socket: zmq.Socket[bytes], place: IpcEndpoint) -> None:
    try:
        socket.bind(str(place))
    except zmq.ZMQError as error:
        raise ParallaxError(
            f"cannot listen at {place}: {zmq.strerror(error.errno or 0)}", "choose another path"
        ) from error
