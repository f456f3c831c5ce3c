from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_transport_lattica.packet import MOST_CONTENT, STREAM_BYTES, BadPacket, Kind, Packet, read_peer

NAMES = st.binary(min_size=STREAM_BYTES, max_size=STREAM_BYTES)
PACKETS = st.builds(Packet, st.sampled_from(Kind), NAMES, st.integers(0, 2**64 - 1), st.binary(max_size=300))


@given(PACKETS)
def test_packet_is_read_as_it_was_written(packet: Packet) -> None:
    assert Packet.unpack(packet.pack()) == packet


@given(st.binary(max_size=200) | PACKETS.map(lambda packet: packet.pack()[: -1 - packet.number % 30]))
def test_any_bytes_are_a_packet_or_refused(data: bytes) -> None:
    try:
        packet = Packet.unpack(data)
    except BadPacket:
        return
    assert packet.pack() == data


@given(st.binary(max_size=100))
def test_any_content_is_a_peer_or_refused(content: bytes) -> None:
    try:
        peer = read_peer(content)
    except BadPacket:
        return
    assert peer.encode() == content
    assert peer.isalnum()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PLT",
        bytes(100),
        pickle.dumps({"a": 1}),
        Packet(Kind.DATA).pack()[:-1],
        Packet(Kind.DATA, content=bytes(MOST_CONTENT + 1)).pack(),
        b"PLT\x02" + Packet(Kind.DATA).pack()[4:],
        b"PLT\x01\x09" + Packet(Kind.DATA).pack()[5:],
    ],
    ids=["nothing", "short", "zeros", "pickle", "cut", "large", "version", "kind"],
)
def test_other_bytes_are_no_packet(data: bytes) -> None:
    with pytest.raises(BadPacket):
        Packet.unpack(data)
