"""The kits of transports, over each way that this one goes."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count

import pytest

from parallax_core.api import Ref, Transport, TransportPlan
from parallax_core.testing.process import ProcessTransportConformance
from parallax_transport_zmq.keyring import Keyring

NUMBERS = count()


class ZmqKit(ProcessTransportConformance):
    grace_s = 30.0
    """A node that gets no turn does not take its own silence for that of others, and is late to miss them."""

    beats_beside_loop = True
    beats_beside_interpreter = True
    factory: Ref[Callable[[TransportPlan], Transport]] = Ref("parallax_transport_zmq.transport:ZmqTransport")

    def make_address(self, node: str) -> str:
        return "tcp://127.0.0.1:0"


@pytest.mark.nightly
class TestTcp(ZmqKit):
    """With the key that is made by itself, on loopback."""


class TestCurve(ZmqKit):
    """With a key of its own for each node."""

    @pytest.fixture(autouse=True)
    def keys(self, ring: Keyring) -> None:
        for node in ("alpha", "beta", "gamma", "one", "two", "three", "child"):
            ring.make(node)


class TestIpc(ZmqKit):
    """Over sockets of this machine, of which the kernel tells nothing."""

    beats_beside_interpreter = False

    def make_address(self, node: str) -> str:
        return f"ipc://{self.folder}/{node}-{next(NUMBERS)}"

    @pytest.fixture(autouse=True)
    def place(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:  # the one of pytest has a long path
            type(self).folder = folder
            yield

    folder: str = ""

    @contextmanager
    def reach_raw(self, address: str) -> Iterator[socket.socket]:
        with closing(socket.socket(socket.AF_UNIX)) as stranger:
            stranger.settimeout(self.grace_s)
            stranger.connect(address.removeprefix("ipc://"))
            yield stranger
