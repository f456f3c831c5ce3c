"""What is seen of a machine, from servers on loopback."""

from __future__ import annotations

import socket

import pytest

from parallax_cluster.deploy.network import Asked
from parallax_cluster.node.network.responder import answering
from parallax_cluster.wire.stun import HostPort, StunAnswer
from parallax_netcheck.client import UdpAsker
from parallax_netcheck.judgement import find_kind
from parallax_netcheck.survey import LAST_PORT, find_proxy, survey_network
from tests.support.ports import HOST, find_ports


def test_server_of_parallax_is_asked_at_both_ports_over_udp_and_tcp() -> None:
    port = find_ports()
    with answering(HOST, port), socket.create_server((HOST, 0)) as listener:
        cluster = f"tcp://{HOST}:{listener.getsockname()[1]}"
        facts = survey_network([Asked(HOST, port, cluster)], {})
    assert facts.own == (HOST,)
    assert [view.server for view in facts.views] == [(HOST, port), (HOST, port + 1)]
    assert all(view.udp is not None and view.tcp is not None and view.udp[0] == HOST for view in facts.views)
    assert [view.hears_other_port for view in facts.views] == [True, None]
    assert facts.clusters == {cluster: True}
    assert find_kind(facts) == "open"


def test_server_at_the_last_port_is_asked_at_that_only() -> None:
    with answering(HOST, LAST_PORT - 1):
        facts = survey_network([Asked(HOST, LAST_PORT)], {})
    [view] = facts.views
    assert (view.server, view.hears_other_port) == ((HOST, LAST_PORT), None)
    assert view.udp is not None
    assert view.tcp is not None


def test_answer_of_the_other_port_is_missed_behind_a_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = UdpAsker.ask

    def drop(self: UdpAsker, server: HostPort, *, changes_port: bool = False) -> StunAnswer | None:
        return None if changes_port else ask(self, server)

    monkeypatch.setattr(UdpAsker, "ask", drop)
    port = find_ports()
    with answering(HOST, port):
        assert find_kind(survey_network([Asked(HOST, port)], {})) == "dial-out"


def test_servers_that_are_not_there_are_none() -> None:
    facts = survey_network([Asked(HOST, 9, f"tcp://{HOST}:9"), Asked("no.such.host.invalid")], {})
    assert [(view.udp, view.tcp) for view in facts.views] == [(None, None)]
    assert facts.clusters == {f"tcp://{HOST}:9": False}
    assert find_kind(facts) == "unreachable"


def test_nobody_is_asked_if_nobody_is_named() -> None:
    facts = survey_network([], {"HTTPS_PROXY": "http://user:secret@proxy.example:3128/"})
    assert (facts.views, facts.proxy) == ((), "proxy.example:3128")


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, ""),
        ({"http_proxy": ""}, ""),
        ({"ALL_PROXY": "proxy:1"}, "proxy:1"),
        ({"https_proxy": "http://[::1]:2"}, "[::1]:2"),
    ],
)
def test_proxy_is_that_of_the_environment(environment: dict[str, str], proxy: str) -> None:
    assert find_proxy(environment) == proxy
