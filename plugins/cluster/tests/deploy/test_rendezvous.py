from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parallax_cluster.config.home import rendezvous_folder
from parallax_cluster.deploy.rendezvous import RendezvousCodes, read_codes
from parallax_cluster.membership.join_code import JoinCode, read_code, write_code
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.config.config import Config
from parallax_core.plugins.host import PluginHost
from tests.unit.deploy.local_rendezvous import at_home, hosting
from tests.unit.node.cluster import soon, until

CODE = write_code(JoinCode(transport="zmq", secret=bytes(16), head=b"k" * 32 + b"127.0.0.1:1"))
OTHER = write_code(JoinCode(transport="none", secret=bytes(16), head=b"k" * 32))


def read(*words: str) -> RendezvousCodes:
    return read_codes(PluginHost.discover(Config()), words, looks_around=False)


def test_codes_are_of_one_transport_that_is_installed() -> None:
    assert len(read(CODE, CODE).codes) == 1
    with pytest.raises(UsageError, match="different transports: none, zmq"):
        read(CODE, OTHER)
    with pytest.raises(ParallaxError, match="none"):
        read(OTHER)
    with pytest.raises(UsageError, match="not a join code"):
        read("tcp://127.0.0.1:1")


def test_rendezvous_that_is_not_there_is_told(tmp_path: Path) -> None:
    with at_home(tmp_path), pytest.raises(ParallaxError, match="no server answers at"):
        read(CODE).find_near()


async def test_machine_that_was_admitted_needs_no_valid_code_again(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as (address, code):
        with at_home(tmp_path / "one"):
            codes = read(code)
            assert (await soon(codes.enter(codes.codes[0]))).address == address
        with at_home(tmp_path / "host"):
            store = CodeStore(path := tmp_path / "host" / "cluster" / "codes.db")
            store.revoke(store.list_codes()[0].name)
        with at_home(tmp_path / "two"), pytest.raises(ParallaxError, match="revoked"):
            await soon(codes.enter(codes.codes[0]))
        path.unlink()  # codes are forgotten some time after they have expired
        with at_home(tmp_path / "one"):
            assert (await soon(codes.enter(codes.codes[0]))).address == address
            place = await soon(codes.reach(codes.codes[0]))
            await (await soon(place.transport.connect(place.address, "head"))).close()
            await place.transport.stop()
        with at_home(tmp_path / "two"), pytest.raises(ParallaxError, match="does not know this join code"):
            await soon(codes.enter(codes.codes[0]))


async def test_rendezvous_is_used_also_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as (address, code):
        with at_home(tmp_path / "one"):
            codes = read(code)
            await soon(codes.enter(codes.codes[0]))
            [record] = rendezvous_folder().glob("*.json")
            record.unlink()
            record.mkdir()
            assert (await soon(codes.enter(codes.codes[0]))).address == address


async def test_one_of_several_rendezvous_may_be_dead(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as (address, code):
        with at_home(tmp_path / "one"):
            found = await asyncio.to_thread(read(CODE, code).find_near)
            assert found == address
            news = asyncio.Event()
            codes = read(CODE, code)
            async with codes.linked(codes.make_announcer(), news.set) as (dead, alive):
                await until(lambda: alive.is_linked)
                assert not dead.is_linked
    assert read_code(code).transport == "zmq"
