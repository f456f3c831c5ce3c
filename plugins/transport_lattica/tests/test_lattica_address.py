from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import ParallaxError
from parallax_transport_lattica.address import (
    LatticaEndpoint,
    find_canary_ip,
    parse_address,
    place_local,
    place_near,
    read_multiaddr,
    write_multiaddr,
)
from parallax_transport_lattica.listener import find_free_port

PEER = "12D3KooWRRk5NRnUjTxzbBVz85TKRAV8gDnFgCmiiQR64t4nLp4T"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (f"lattica://10.0.0.5:4011/{PEER}", LatticaEndpoint("10.0.0.5", 4011, PEER)),
        (f"lattica://[::1]:4011/{PEER}", LatticaEndpoint("::1", 4011, PEER)),
        ("lattica://studio.local:0", LatticaEndpoint("studio.local", 0)),
        ("lattica://0.0.0.0:4011?at=203.0.113.7:80", LatticaEndpoint("0.0.0.0", 4011, "", "203.0.113.7:80")),  # noqa: S104
    ],
)
def test_address_is_read_as_it_is_written(address: str, place: LatticaEndpoint) -> None:
    assert parse_address(address) == place
    assert str(place) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nowhere",
        "tcp://10.0.0.5:4011",
        "lattica://",
        "lattica://10.0.0.5",
        "lattica://10.0.0.5:70000",
        "lattica://10.0.0.5:4011/someone",
        f"lattica://10.0.0.5:4011/{PEER}/more",
        f"lattica:///{PEER}",
        "lattica://10.0.0.5:4011?at=",
        "lattica://10.0.0.5:4011?at=here",
        "lattica://10.0.0.5:4011?at=203.0.113.7:0",
        "lattica://10.0.0.5:4011?to=10.0.0.6:1",
    ],
)
def test_other_addresses_are_refused_with_a_hint(address: str) -> None:
    with pytest.raises(ParallaxError, match="not an address of lattica's") as caught:
        parse_address(address)
    assert "lattica://HOST:PORT/PEER" in caught.value.hint or "the port" in caught.value.hint


@given(st.text(max_size=80) | st.text(alphabet="lattic:/[]0123456789.@?#x", max_size=80).map("lattica://".__add__))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    with suppress(ParallaxError):
        assert parse_address(str(parse_address(text))) == parse_address(text)


@given(st.ip_addresses(), st.integers(1, 65535))
def test_multiaddr_is_read_as_it_is_written(ip: object, port: int) -> None:
    written = write_multiaddr(ip_address(str(ip)), port, PEER)
    assert read_multiaddr(written) == LatticaEndpoint(str(ip), port, PEER)


@pytest.mark.parametrize(
    "text", ["", "/ip4/1.2.3.4/udp/1/quic-v1/p2p/x", "/p2p-circuit/p2p/x", "/ip4/1.2.3.4/tcp/x/p2p/y"]
)
def test_other_multiaddrs_are_not_read(text: str) -> None:
    assert read_multiaddr(text) is None


def test_nodes_of_one_machine_meet_on_loopback(tmp_path: Path) -> None:
    assert place_local(tmp_path, "head") == "lattica://127.0.0.1:0"
    assert place_near(f"lattica://127.0.0.1:4011/{PEER}", "mini/1") == "lattica://127.0.0.1:0"


def test_node_near_another_machine_listens_at_the_interface_that_leads_there() -> None:
    place = parse_address(place_near(f"lattica://192.0.2.7:4011/{PEER}", "mini/1"))
    assert place.port == 0
    assert not ip_address(place.host).is_loopback


@pytest.mark.parametrize(("host", "near"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.5", "10.0.0.5")])  # noqa: S104
def test_listener_is_reached_from_its_own_machine(host: str, near: str) -> None:
    assert str(find_canary_ip(ip_address(host))) == near


def test_port_at_which_another_listens_is_refused_although_it_would_share_it() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        place = LatticaEndpoint("127.0.0.1", other.getsockname()[1])
        with pytest.raises(ParallaxError, match="cannot listen at lattica:"):
            find_free_port(place, ip_address("127.0.0.1"))


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ParallaxError, match="cannot listen at"):
        find_free_port(LatticaEndpoint("192.0.2.7", 0), ip_address("192.0.2.7"))
