"""What a network is called, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_netcheck.judgement import TEXTS, Kind, NetworkFacts, ServerView, find_kind, judge_network

OWN = "192.168.1.2"
PUBLIC = "203.0.113.9"
ONE, OTHER = ("203.0.113.1", 29754), ("203.0.113.1", 29755)
FAR = ("203.0.113.200", 3478)


def see(*ports: int | None, address: str = PUBLIC, hears: bool | None = None, tcp: int | None = 1) -> NetworkFacts:
    """Return facts in which each server sees a port, or gets no datagram."""
    views = [
        ServerView(
            server=(ONE, OTHER, FAR)[number],
            udp=(address, port) if port else None,
            tcp=(address, tcp) if tcp else None,
            hears_other_port=hears if not number else None,
        )
        for number, port in enumerate(ports)
    ]
    return NetworkFacts(own=(OWN,), has_ipv6=True, views=tuple(views))


CASES: dict[str, tuple[NetworkFacts, Kind]] = {
    "own address, strangers heard": (see(5, 5, address=OWN, hears=True), "open"),
    "own address, strangers not heard": (see(5, 5, address=OWN, hears=False), "dial-out"),
    "own address, a server of others": (see(5, address=OWN), "unknown"),
    "one port for all": (see(5, 5, 5, hears=False), "cone"),
    "another port for another port": (see(5, 6), "symmetric"),
    "another port for another address only": (see(5, 5, 6), "symmetric"),
    "one server, which has one port": (see(5), "router"),
    "a second server that is silent": (see(5, None, tcp=None), "router"),
    "TCP only": (see(None, None), "no-udp"),
    "nothing": (see(None, tcp=None), "unreachable"),
    "nothing, and a proxy": (replace(see(None, tcp=None), proxy="proxy:3128"), "proxy"),
    "nothing asked": (NetworkFacts(proxy="proxy:3128"), "unknown"),
    "a cluster that tells nothing": (replace(see(None, tcp=None), clusters={"tcp://a:1": True}), "unknown"),
    "a cluster that is gone": (NetworkFacts(clusters={"tcp://a:1": False}), "unreachable"),
}


@pytest.mark.parametrize("name", CASES)
def test_network_is_called(name: str) -> None:
    facts, kind = CASES[name]
    assert find_kind(facts) == kind


def test_every_kind_has_a_case_and_a_text() -> None:
    assert {kind for _, kind in CASES.values()} == set(TEXTS) == set(get_args(Kind))


def test_address_of_the_router_is_part_of_what_to_do() -> None:
    report = judge_network(see(5, 5))
    assert report.address == PUBLIC
    assert any(f"?at={PUBLIC}:4012" in each for each in report.remedies)


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        (NetworkFacts(), "no IPv6"),
        (replace(see(5, 5), proxy="proxy:3128"), "proxy:3128"),
        (replace(see(5, 5), own=("100.64.3.4",)), "provider"),
        (see(5, 5, address=OWN, hears=True), "TCP ports"),
        (see(5, 5), "one address"),
        (replace(see(5), clusters={"tcp://a:1": False}), "tcp://a:1 accepts no connection"),
    ],
)
def test_notes_say_what_else_is_known(facts: NetworkFacts, note: str) -> None:
    assert any(note in each for each in judge_network(facts).notes)


def test_router_that_keeps_ports_over_udp_only_is_noted() -> None:
    facts = see(5, 5)
    views = (facts.views[0], replace(facts.views[1], tcp=(PUBLIC, 2)))
    assert any("Over TCP" in each for each in judge_network(replace(facts, views=views)).notes)
    assert not any("Over TCP" in each for each in judge_network(facts).notes)


views = st.builds(
    ServerView,
    server=st.sampled_from([ONE, OTHER, FAR]),
    udp=st.none() | st.tuples(st.sampled_from([OWN, PUBLIC]), st.integers(1, 3)),
    tcp=st.none() | st.tuples(st.sampled_from([OWN, PUBLIC]), st.integers(1, 3)),
    hears_other_port=st.none() | st.booleans(),
)


@given(st.lists(views, max_size=4), st.booleans(), st.sampled_from(["", "proxy:1"]))
def test_open_is_said_only_of_machines_that_strangers_reach(seen: list[ServerView], ipv6: bool, proxy: str) -> None:
    report = judge_network(NetworkFacts(own=(OWN,), has_ipv6=ipv6, proxy=proxy, views=tuple(seen)))
    if report.kind == "open":
        assert any(view.hears_other_port for view in seen)
        assert {view.udp[0] for view in seen if view.udp} == {OWN}
    assert report.summary
    assert report.works
