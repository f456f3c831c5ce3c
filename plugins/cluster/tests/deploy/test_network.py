"""Whom `parallax network` asks, and where a server tells addresses."""

from __future__ import annotations

import logging
import socket
from contextlib import closing
from pathlib import Path

import pytest

from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.deploy.network import Asked, list_asked, telling_addresses
from parallax_cluster.membership.join_code import JoinCode, write_code
from parallax_core.base.errors import UsageError
from parallax_core.base.ids import HEAD
from parallax_core.config.config import Config
from parallax_core.config.network_options import STUN_PORT
from parallax_core.plugins.host import PluginHost
from parallax_netcheck.client import UdpAsker
from tests.support.ports import HOST, find_ports


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return PluginHost.discover(Config())


def make_code(plugins: PluginHost, *, is_short: bool = False) -> str:
    method = get_method(plugins, "zmq")
    method.prepare(HEAD)
    head = method.describe_head(HEAD, "tcp://203.0.113.1:9000")
    return write_code(JoinCode(transport="zmq", secret=bytes(16), head=b"" if is_short else head))


def test_servers_are_named_by_code_address_or_port(plugins: PluginHost) -> None:
    words = [make_code(plugins), "lattica://203.0.113.2:4011/PEER", "stun.example", "[2001:db8::1]:3478"]
    assert list_asked(words, plugins) == [
        Asked("203.0.113.1", STUN_PORT, "tcp://203.0.113.1:9000"),
        Asked("203.0.113.2", STUN_PORT, "lattica://203.0.113.2:4011/PEER"),
        Asked("stun.example", STUN_PORT),
        Asked("2001:db8::1", 3478),
    ]


def test_without_names_those_are_asked_that_were_joined(plugins: PluginHost) -> None:
    assert list_asked([], plugins) == []
    JoinedHead(transport="zmq", address="tcp://203.0.113.5:9000", head=b"key", machine="desk").save()
    assert list_asked([], plugins) == [Asked("203.0.113.5", STUN_PORT, "tcp://203.0.113.5:9000")]


@pytest.mark.parametrize(
    "words",
    [
        ["tcp://"],
        ["tcp://host"],
        ["tcp://[::1:9"],
        ["host:port"],
        ["a/b"],
        [":5"],
        ["user@host"],
        ["plx1abc"],
        ["host"] * 9,
    ],
)
def test_what_names_no_server_is_refused(plugins: PluginHost, words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        list_asked(words, plugins)
    assert raised.value.hint


def test_short_code_has_no_address(plugins: PluginHost) -> None:
    with pytest.raises(UsageError, match="no address"):
        list_asked([make_code(plugins, is_short=True)], plugins)


def test_server_tells_addresses_where_it_listens() -> None:
    port = find_ports()
    with closing(UdpAsker(socket.AF_INET)) as asker:
        with telling_addresses(["ipc:///nowhere/socket", f"tcp://{HOST}:9000", "tcp://192.0.2.1:9000"], port):
            assert any(asker.ask((HOST, port)) for _ in range(5)), "it answers in time, on a busy machine too"
        assert asker.ask((HOST, port)) is None


@pytest.mark.parametrize(("places", "used"), [(["ipc:///nowhere/socket"], True), (["tcp://127.0.0.1:9000"], False)])
def test_server_that_nobody_can_ask_has_no_port(places: list[str], *, used: bool) -> None:
    port = find_ports()
    with telling_addresses(places, port if used else 0), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, port))


@pytest.mark.parametrize("host", [HOST, "no.such.host.invalid"])
def test_server_whose_ports_are_taken_goes_on(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        with caplog.at_level(logging.WARNING), telling_addresses([f"tcp://{host}:1"], taken.getsockname()[1]):
            assert "cannot ask this server" in caplog.text
