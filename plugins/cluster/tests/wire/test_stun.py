"""Binding requests of STUN: as RFC 5769 writes them, and whatever strangers send."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.wire.stun import (
    HEAD,
    MAGIC,
    MOST_BYTES,
    REQUEST,
    REQUEST_BYTES,
    StunAnswer,
    answer_request,
    make_request,
    read_answer,
    read_request,
)

TRANSACTION = bytes.fromhex("b7e7a701bc34d686fa87dfae")
RFC_IPV4 = bytes.fromhex(
    "0101003c2112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220002000080001a147e112a643"
    "000800142b91f599fd9e90c38c7489f92af9ba53f06be7d780280004c07d4c96"
)
"""The response of section 2.2 of RFC 5769."""
RFC_IPV6 = bytes.fromhex(
    "010100482112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220002000140002a1470113a9fa"
    "a5d3f179bc25f4b5bed2b9d900080014a382954e4be67bf11784c97c8292c275bfe3ed4180280004c8fb0b4c"
)
"""That of section 2.3."""
WITHOUT_XOR = struct.pack("!HHI12sHHBBH4s", 0x0101, 12, MAGIC, TRANSACTION, 0x0001, 8, 0, 1, 77, bytes([192, 0, 2, 9]))
"""A response of a server that is older than RFC 5389."""
transactions = st.binary(min_size=12, max_size=12)
addresses = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))


def test_responses_of_the_rfc_are_read() -> None:
    assert read_answer(RFC_IPV4, TRANSACTION) == StunAnswer(("192.0.2.1", 32853), is_parallax=False)
    expected = StunAnswer(("2001:db8:1234:5678:11:2233:4455:6677", 32853), is_parallax=False)
    assert read_answer(RFC_IPV6, TRANSACTION) == expected
    assert read_answer(WITHOUT_XOR, TRANSACTION) == StunAnswer(("192.0.2.9", 77), is_parallax=False)


def test_response_to_another_request_is_none() -> None:
    assert read_answer(RFC_IPV4, bytes(12)) is None


@given(transactions, addresses, st.booleans())
def test_machine_reads_the_address_that_a_server_has_seen(
    transaction: bytes, address: tuple[str, int], changes: bool
) -> None:
    request = make_request(transaction, changes_port=changes)
    found = answer_request(request, address)
    assert found is not None
    assert (found[1].changes_port, len(request)) == (changes, REQUEST_BYTES)
    host = IPv6Address(address[0]).ipv4_mapped if ":" in address[0] else None
    expected = (str(host), address[1]) if host else address
    assert read_answer(found[0], transaction) == StunAnswer(expected, is_parallax=True)


def test_scope_and_mapped_addresses_are_plain() -> None:
    found = [answer_request(make_request(TRANSACTION), (host, 5)) for host in ("fe80::1%eth0", "::ffff:192.0.2.7")]
    answers = [read_answer(each[0], TRANSACTION) for each in found if each is not None]
    assert [each.address for each in answers if each is not None] == [("fe80::1", 5), ("192.0.2.7", 5)]


@given(
    st.binary(max_size=MOST_BYTES + 50) | st.binary(max_size=80).map(lambda body: make_request(TRANSACTION)[:20] + body)
)
def test_no_answer_is_longer_than_what_was_sent(data: bytes) -> None:
    for host in ("192.0.2.1", "2001:db8::1"):
        found = answer_request(data, (host, 1))
        assert found is None or len(found[0]) <= len(data)
    read_answer(data, TRANSACTION)


@given(st.integers(0, REQUEST_BYTES - 1), st.integers(1, 255), st.sampled_from(["192.0.2.1", "2001:db8::1"]))
def test_damaged_requests_raise_nothing(place: int, change: int, host: str) -> None:
    damaged = bytearray(make_request(TRANSACTION, changes_port=True))
    damaged[place] ^= change
    found = answer_request(bytes(damaged), (host, 1))
    assert found is None or len(found[0]) <= len(damaged)


@given(st.integers(0, len(RFC_IPV6) - 1), st.integers(1, 255))
def test_damaged_responses_raise_nothing(place: int, change: int) -> None:
    damaged = bytearray(RFC_IPV6)
    damaged[place] ^= change
    found = read_answer(bytes(damaged), TRANSACTION)
    assert found is None or isinstance(IPv6Address(found.address[0]), IPv6Address)


@pytest.mark.parametrize("size", [0, 12])
def test_short_requests_of_others_are_not_answered(size: int) -> None:
    body = struct.pack("!HH8s", 0x8022, 8, b"somebody")[:size]
    request = HEAD.pack(REQUEST, len(body), MAGIC, TRANSACTION) + body
    assert read_request(request) is not None
    assert answer_request(request, (str(IPv4Address(1)), 1)) is None


@pytest.mark.parametrize("name", [0x0006, 0x0003])
def test_requests_for_what_is_not_known_are_ignored(name: int) -> None:
    body = struct.pack("!HHI", name, 4, 0x04) + struct.pack("!HH32x", 0x8022, 32)
    assert read_request(HEAD.pack(REQUEST, len(body), MAGIC, TRANSACTION) + body) is None


def test_messages_are_those_of_other_versions() -> None:
    start = "0001002c2112a442b7e7a701bc34d686fa87dfae"
    padded = "706172616c6c6178" + "20" * 24
    assert make_request(TRANSACTION).hex() == f"{start}80220028{padded}{'20' * 8}"
    assert make_request(TRANSACTION, changes_port=True).hex() == f"{start}80220020{padded}0003000400000002"
    found = answer_request(make_request(TRANSACTION), ("192.0.2.1", 32853))
    assert found is not None
    answer = "010100182112a442b7e7a701bc34d686fa87dfae002000080001a147e112a64380220008706172616c6c6178"
    assert found[0].hex() == answer
