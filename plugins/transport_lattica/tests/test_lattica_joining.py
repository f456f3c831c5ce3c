"""Join codes over lattica: the kit, and what only this transport promises."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import ParallaxError, TransportSpec
from parallax_core.testing.joining import JoinConformance
from parallax_transport_lattica.address import parse_address
from parallax_transport_lattica.call import find_ip, start_caller
from parallax_transport_lattica.joining import LatticaJoining, choose_address
from parallax_transport_lattica.plugin import parallax_register_transports
from tests.support.lattica_nodes import LOOPBACK, plan_node, started

[SPEC] = parallax_register_transports()
PEER = "12D3KooWRRk5NRnUjTxzbBVz85TKRAV8gDnFgCmiiQR64t4nLp4T"


class TestJoining(JoinConformance):
    spec: TransportSpec = SPEC

    @pytest.fixture(autouse=True)
    def machines(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = tmp_path, monkeypatch

    def make_address(self) -> str:
        return "lattica://127.0.0.1:0"

    def enter_machine(self, name: str) -> None:
        self.patch.setenv("PARALLAX_HOME", str(self.folder / name))


@given(st.binary(max_size=600))
def test_any_description_is_read_or_refused(data: bytes) -> None:
    with suppress(ParallaxError):
        assert len(LatticaJoining().find_key(data)) == 32
        assert all(address.startswith("lattica://") for address in LatticaJoining().list_addresses(data))


def test_description_without_the_id_of_a_peer_is_refused() -> None:
    LatticaJoining().prepare("head")
    with pytest.raises(ParallaxError, match="the id of the peer"):
        LatticaJoining().describe_head("head", "lattica://127.0.0.1:4011")


async def test_first_address_of_a_code_that_answers_counts() -> None:
    async with started(plan_node("far", LOOPBACK)) as far:
        place = parse_address(far.address)
        lost = f"lattica://192.0.2.77:{place.port}/{place.peer}"
        places = [(each, await find_ip(each)) for each in map(parse_address, (lost, far.address))]
        process, port, reached = await start_caller(places)
        await process.kill()
        assert port
        assert choose_address((lost, far.address), reached) == far.address


def test_address_of_a_code_that_was_reached_is_kept() -> None:
    LatticaJoining().prepare("head")
    places = [f"lattica://{host}:4011/{PEER}" for host in ("10.0.0.1", "192.168.1.2")]
    assert choose_address(tuple(places), f"/ip4/192.168.1.2/tcp/4011/p2p/{PEER}") == places[1]
    assert choose_address(tuple(places), "/ip4/172.16.0.1/tcp/4011") == places[0]
