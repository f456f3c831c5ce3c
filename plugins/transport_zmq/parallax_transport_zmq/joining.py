"""Join codes over TCP: the head's public key and addresses, and a secret for one connection's key.

The head knows the public half of that key. So CURVE proves both sides before a message is sent: the head by its key,
and the machine by the secret. Over this connection the head learns the machine's own key, which it trusts from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

import zmq

from parallax_core.api import (
    Enrolment,
    FrameLimits,
    IncompatibleNode,
    ParallaxError,
    PeerLost,
    TransportPlan,
    keys_folder,
)
from parallax_transport_zmq.address import IpcEndpoint, TcpEndpoint, advertise_host, parse_address
from parallax_transport_zmq.call import EVENTS
from parallax_transport_zmq.interfaces import list_own_addresses
from parallax_transport_zmq.keyfile import KEY_BYTES, KeyPair, NodeRole, derive_public
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.message import BadMessage, Kind, pack_enrol, unpack_enrolled, unpack_reason
from parallax_transport_zmq.pump import Pump
from parallax_transport_zmq.security import Guard
from parallax_transport_zmq.target import Context, find_ip, open_socket, stop_context

ENROL_S = 2.5
"""Seconds for all addresses of a head together: with the start of the command, less than five."""
IPV4 = 4
MOST_ADDRESSES = 6
PURPOSE = b"parallax join code: key of the first connection"
LOOPBACK = ("tcp://127.", "tcp://[::1]")
NO_ANSWER = "is it still running, does a firewall let this port through, or does another program have it?"
DAMAGED = "the description of the head in the join code is damaged"
SAME_VERSION = "install the same version of Parallax on every node"
SMALL = FrameLimits(header_bytes=2**12, frame_bytes=2**12, buffers=0)


class ZmqJoining:
    """Makes and uses join codes, and keeps machines; see `parallax_core.api.JoinMethod` and `MachineKeys`."""

    def __init__(self) -> None:
        self._keyring = Keyring(keys_folder())

    def prepare(self, node: str) -> None:
        """Create the key ``default``, unless the node has a key."""
        self._keyring.check_folders()
        self._keyring.ensure_pair(node)

    def describe_head(self, node: str, address: str) -> bytes:
        """Return the public key of ``node``, and the addresses at which it listens."""
        place = parse_address(address)
        if isinstance(place, IpcEndpoint):
            raise ParallaxError(f"no other machine reaches {address}", "listen at tcp://HOST:PORT")
        if not place.port:
            raise ParallaxError(f"the port of {address} is not known", "give the one at which it listens")
        pair = self._keyring.find_pair(node)
        if pair is None:
            raise ParallaxError(f"node {node!r} has no key", "make one: `parallax keys new`")
        places = [f"{host}:{place.port}" for host in list_hosts(place)]
        return pair.public + ",".join(places).encode()

    def list_addresses(self, head: bytes) -> tuple[str, ...]:
        """Return the addresses in the description of a head."""
        try:
            texts = head[KEY_BYTES:].decode("ascii").split(",")
            return tuple(str(parse_address(f"tcp://{text}")) for text in texts[:MOST_ADDRESSES])
        except (UnicodeDecodeError, ParallaxError) as error:
            raise ParallaxError(DAMAGED, "copy the code again, with all its letters") from error

    def find_key(self, head: bytes) -> bytes:
        """Return the public key in the description of a head."""
        if len(head) <= KEY_BYTES:
            raise ParallaxError(DAMAGED, "copy the code again, with all its letters")
        return head[:KEY_BYTES]

    def derive_proof(self, secret: bytes) -> bytes:
        """Return the public half of the key that belongs to a secret."""
        return derive_pair(secret).public

    def list_machines(self) -> dict[str, bytes]:
        """Return the keys of the machines that may be workers here; see `parallax_core.api.MachineKeys`."""
        return self._keyring.list_machines()

    def list_removed(self) -> Mapping[bytes, str]:
        """Return the keys that were removed, each with its name."""
        return self._keyring.list_removed()

    def find_role(self, key: bytes) -> NodeRole | None:
        """Return the role of a key, of whichever machine; None for an unknown or removed key."""
        return self._keyring.find_key_role(key)

    def take_over(
        self, machines: Mapping[str, bytes], removed: Mapping[bytes, str], servers: Mapping[str, bytes]
    ) -> None:
        """Trust the machines of another head as workers, ``servers`` also as heads, and none that was removed."""
        self._keyring.take_over(machines, removed, servers)

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        """Ask the head to admit this machine's own key; the first address that answers counts."""
        key, addresses = self.find_key(head), self.list_addresses(head)
        self.prepare(machine)
        own = self._keyring.ensure_pair(machine).public
        guard, request = Guard(derive_pair(secret), key), pack_enrol(versions, own, machine)
        context: Context = zmq.Context()
        tasks = [asyncio.create_task(_ask(context, address, guard, request)) for address in addresses]
        try:
            return await _take_first(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await stop_context(context)


def derive_pair(secret: bytes) -> KeyPair:
    """Return the key for the first connection of a machine that has the secret of a code."""
    key = hashlib.blake2b(secret, digest_size=KEY_BYTES, key=hashlib.sha256(PURPOSE).digest()).digest()
    return KeyPair(derive_public(key), key)


def list_hosts(place: TcpEndpoint) -> list[str]:
    """Return the hosts at which other machines may reach a listener: of one on all interfaces, several."""
    if place.host not in {"0.0.0.0", "::"}:  # noqa: S104 -- nothing is bound here
        return [_write_host(place.host)]
    own = [str(each) for each in list_own_addresses() if place.host == "::" or each.version == IPV4]
    found = dict.fromkeys([advertise_host(place.host), *own, *_find_own_hosts()])
    usable = [host for host in found if not ip_address(host).is_loopback and not ip_address(host).is_link_local]
    return [_write_host(host) for host in (usable or list(found))[: MOST_ADDRESSES - 1]]


def _find_own_hosts() -> Iterator[str]:
    with contextlib.suppress(OSError):  # the machine's own name may not be known
        for *_, where in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            yield str(where[0]).partition("%")[0]


def _write_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _take_first(tasks: list[asyncio.Task[Enrolment]]) -> Enrolment:
    """Return the first admission; without one, raise a head's refusal, or else the first error."""
    errors: list[ParallaxError] = []
    for done in asyncio.as_completed(tasks):
        try:
            return await done
        except ParallaxError as error:
            errors.append(error)
    refusal = next((error for error in errors if isinstance(error, (_Refused, IncompatibleNode))), None)
    if refusal is not None or len(errors) == 1:
        raise refusal or errors[0]
    reasons = "; ".join(dict.fromkeys(error.message for error in errors))
    hint = (
        "does this machine reach one of these addresses? Is a firewall in between, or the server not running any more?"
    )
    raise PeerLost(f"the server of the join code is not reached: {reasons}", hint)


class _Refused(PeerLost):
    """The head itself refuses."""


async def _ask(context: Context, address: str, guard: Guard, request: bytes) -> Enrolment:
    """Ask the head at an address to admit this machine.

    Raises:
        PeerLost: if it refuses, or cannot be reached; with the reason.
    """
    plan = TransportPlan(node="", timeout_s=ENROL_S, limits=SMALL)
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.timeout(ENROL_S):
            endpoint = await _find_endpoint(address)
            question = _Question(context, plan, guard, answer)
            try:
                question.ask(endpoint, address, request)
                return Enrolment(machine=unpack_enrolled(await answer), address=address)
            finally:
                question.close()
                if answer.done() and not answer.cancelled():
                    answer.exception()  # of an address that was not waited for
    except TimeoutError as error:
        message = f"the server at {address} does not answer in {ENROL_S:g} s"
        raise PeerLost(message, NO_ANSWER) from error
    except BadMessage as error:
        raise PeerLost(f"the process at {address} sent {error}", "is it a Parallax of the same version?") from error


async def _find_endpoint(address: str) -> str:
    place = parse_address(address)
    assert isinstance(place, TcpEndpoint), "the description of a head has no others"
    return str(TcpEndpoint(str(await find_ip(place, address)), place.port))


class _Question:
    """A connection for one request."""

    def __init__(self, context: Context, plan: TransportPlan, guard: Guard, answer: asyncio.Future[bytes]) -> None:
        self._answer = answer
        self._address = ""
        self._is_local = False
        self._socket = open_socket(context, zmq.DEALER, plan, guard)
        self._events = Pump(self._socket.get_monitor_socket(EVENTS), self._note)
        self._pump = Pump(self._socket, self._hear)

    def ask(self, endpoint: str, address: str, request: bytes) -> None:
        self._address = address
        self._is_local = endpoint.startswith(LOOPBACK)
        self._socket.connect(endpoint)
        with contextlib.suppress(ConnectionError):  # if refused by now, an event gives the reason
            self._pump.send([request])

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close()
        self._pump.close(0.0)

    def _hear(self, parts: list[zmq.Frame]) -> None:
        data = parts[0].bytes
        if data[:1] == Kind.INCOMPATIBLE:
            message = f"the server at {self._address} refuses this machine: {unpack_reason(data)}"
            self._fail(IncompatibleNode(message, SAME_VERSION))
        elif data[:1] == Kind.REFUSE:
            hint = (
                "ask for another code (`parallax cluster codes new` on the server's machine), or see the server's log"
            )
            self._fail(_Refused(f"the server at {self._address} refuses this machine: {unpack_reason(data)}", hint))
        elif not self._answer.done():
            self._answer.set_result(data)

    def _note(self, parts: list[zmq.Frame]) -> None:
        event, _ = struct.unpack("=Hi", parts[0].bytes)
        self._pump.drain()
        match zmq.Event(event):
            case zmq.Event.CONNECTED:
                return
            case zmq.Event.HANDSHAKE_FAILED_AUTH:
                hint = "it was made for another server, or long ago; `parallax cluster codes new` there makes another"
                self._fail(_Refused(f"the server at {self._address} does not know this join code", hint))
            case zmq.Event.CLOSED:
                hint = "is the server still running, and does this machine reach it?"
                if self._is_local:
                    hint = "only the machine of the server itself reaches this address: let it listen at tcp://0.0.0.0:PORT"
                self._fail(PeerLost(f"no server answers at {self._address}", hint))
            case _:
                hint = "the code is for a server with another key: ask for one (`parallax cluster codes new`)"
                self._fail(PeerLost(f"the process at {self._address} is not the server of the join code", hint))

    def _fail(self, error: PeerLost) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
