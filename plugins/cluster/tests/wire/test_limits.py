"""Messages of the cluster hold as much as other versions send, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from parallax_cluster.wire.profile import (
    DeviceReport,
    LinkReport,
    NodeReport,
    Peer,
    Peers,
    Probe,
    StoredLayers,
)
from parallax_cluster.wire.relay import PickUp, RelayPlace, Relays, RelayUser, RelayUsers, Ring
from parallax_cluster.wire.rendezvous import Announced, Follow
from parallax_cluster.wire.succession import ClusterState, Succession

Make = Callable[[Any], Any]
PEER, TOPIC = Peer("n/1", "inprocess://n"), bytes(16)


def report(**fields: Any) -> NodeReport:
    return NodeReport(backend="torch", device=DeviceReport(memory=1, flops=1e12, bandwidth=1e9), **fields)


def is_read(message: Any) -> bool:
    """Return whether a message is read as it was written."""
    try:
        return bool(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message)
    except msgspec.ValidationError:
        return False


@pytest.mark.parametrize(
    ("most", "make"),
    [
        pytest.param(64, lambda n: report(stored=(StoredLayers("m", 0, 1),) * n), id="stored"),
        pytest.param(1024, lambda n: report(links=(LinkReport("n", 0.1, 1e8),) * n), id="links"),
        pytest.param(1024, lambda n: report(unreached=("n",) * n), id="unreached"),
        pytest.param(32, lambda n: report(labels=(("k", "v"),) * n), id="labels"),
        pytest.param(64, lambda n: report(versions=(("k", "v"),) * n), id="versions"),
        pytest.param(2**50, lambda n: report(disk_free=n), id="bytes"),
        pytest.param(64, lambda n: Peers((PEER,) * n), id="peers"),
        pytest.param(2**18, lambda n: Probe(bytes(n)), id="probe"),
        pytest.param(8, lambda n: Relays((RelayPlace("n", "a"),) * n), id="relays"),
        pytest.param(4096, lambda n: RelayUsers((RelayUser("n"),) * n), id="users"),
        pytest.param(64, lambda n: Follow((TOPIC,) * n), id="topics"),
        pytest.param(2048, lambda n: Announced(bytes(n)), id="announcement"),
        pytest.param(2**16, lambda n: Succession(bytes(n)), id="proof"),
        pytest.param(16, lambda n: Succession(b"", (PEER,) * n), id="heads"),
        pytest.param(2**20, lambda n: ClusterState(bytes(n)), id="state"),
    ],
)
def test_message_holds_so_much_and_no_more(most: int, make: Make) -> None:
    assert is_read(make(most))
    assert not is_read(make(most + 1))


@pytest.mark.parametrize("make", [PickUp, lambda token: Ring("n", token), lambda topic: Follow((topic,))])
def test_tokens_and_topics_have_sixteen_bytes(make: Make) -> None:
    assert [is_read(make(bytes(count))) for count in (15, 16, 17)] == [False, True, False]


def test_empty_announcement_is_none() -> None:
    assert is_read(Announced(b"a"))
    assert not is_read(Announced(b""))


def test_report_says_nothing_of_what_it_leaves_out() -> None:
    found = msgspec.to_builtins(report())
    assert found == msgspec.to_builtins(
        report(dtype="auto", disk_free=0, stored=(), links=(), leases=False, labels=(), versions=(), max_context=0)
    )
    assert (report().device.total_memory, report().device.step_s, report().device.is_measured) == (0, 0.0, False)
